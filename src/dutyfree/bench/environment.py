"""Where a benchmark ran: the header of every report, so that a number is never read without its machine."""

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch

Environment = dict[str, str | int]


def describe() -> Environment:
    """The machine, the versions and the settings that a result depends on."""
    environment: Environment = {
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dutyfree": importlib.metadata.version("dutyfree"),
        "commit": _commit(),
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    }
    if torch.cuda.is_available():
        environment["gpu"] = torch.cuda.get_device_name()
        environment["cuda"] = torch.version.cuda or "unknown"
    return environment


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    """The checkout's commit, with a plus sign where files differ from it; "none" for an installed package."""
    git = shutil.which("git")
    package = Path(__file__).parents[1]
    if git is None:
        return "none"

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([git, "-C", str(package), *arguments], capture_output=True, text=True, check=False)

    # An installed package may lie inside someone else's checkout: only a file that git tracks makes it ours.
    if ask("ls-files", "--error-unmatch", "__init__.py").returncode != 0:
        return "none"
    head = ask("rev-parse", "--short=12", "HEAD")
    if head.returncode != 0:
        return "none"
    changed = ask("status", "--porcelain", "--untracked-files=no", ":/", ":(top,exclude)benchmarks/results")
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
