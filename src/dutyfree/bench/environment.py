"""Where a benchmark ran: the header of every report, so that a number is never read without its machine."""

import datetime
import importlib.metadata
import os
import platform
import re
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
    name = _cpu_info("model name")
    if not name:
        return platform.processor() or platform.machine()
    # Hypervisors hide the rest of the name, and generations of one maker differ by factors.
    family, model = _cpu_info("cpu family"), _cpu_info("model\t")
    return f"{name} (family {family}, model {model})" if family and model else name


def _cpu_info(name: str) -> str:
    """What Linux says of the first processor; nothing elsewhere."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


# Instructions that products of small numbers are made of.
_FLAGS = re.compile(r"avx2|fma|f16c|avx_vnni.*|avx512.*|amx_.*")


def vector_flags() -> str:
    """The processor's flags for vector and matrix instructions."""
    return " ".join(flag for flag in _cpu_info("flags").split() if _FLAGS.fullmatch(flag))


def last_level_cache() -> int:
    """Its size in bytes, of one processor's point of view; 32 MiB where the machine does not say."""
    sizes = [32 * 2**10]
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        sizes.append(int(index.read_text().strip().removesuffix("K")))
    return max(sizes[1:] or sizes) * 2**10


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
