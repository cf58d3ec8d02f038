"""Linux processes: what became of one, and the end of one with all that it started."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

# Seconds that the first process has to notice the end of the others and to end by itself.
PATIENCE = 5.0
# <sys/prctl.h>
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Process:
    """A process, which is another one when a number is used again."""

    pid: int
    began: int

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        fields = _stat(pid)
        return None if fields is None else cls(pid, int(fields[19]))

    @property
    def state(self) -> str | None:
        """The letter that the kernel has for it: "T" where a signal stopped it. None where it has ended."""
        fields = _stat(self.pid)
        ended = fields is None or fields[0] in "ZX" or int(fields[19]) != self.began
        return None if ended or fields is None else fields[0]

    def kill(self) -> None:
        if self.state is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def descendants(pid: int) -> set[Process]:
    """The processes that it started, that those started and so on; those that ended are not among them."""
    children: dict[int, list[Process]] = {}
    for path in Path("/proc").iterdir():
        fields = _stat(int(path.name)) if path.name.isdecimal() else None
        if fields is not None and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(Process(int(path.name), int(fields[19])))
    found: set[Process] = set()
    reached = [pid]
    while reached:
        next_ones = [child for parent in reached for child in children.get(parent, [])]
        found.update(next_ones)
        reached = [child.pid for child in next_ones]
    return found


def end(first: "subprocess.Popen[bytes]") -> None:
    """Kills what a process started, and then it. It is left to reap them first, so that no zombies stay."""
    known: set[Process] = set()
    deadline = time.monotonic() + PATIENCE
    itself = Process.of(first.pid)
    while first.poll() is None and time.monotonic() < deadline and itself is not None and itself.state != "T":
        known |= descendants(first.pid)
        for process in known:
            process.kill()
        time.sleep(0.02)
    if first.poll() is None:
        known |= descendants(first.pid)
        first.kill()
        first.wait()
    for process in known:
        process.kill()


def die_with_parent() -> None:
    """The kernel kills this process when the one that started it ends, however that comes."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may have spaces: the state first, then the parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
