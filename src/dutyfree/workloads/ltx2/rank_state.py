"""How the ranks of a run tell the process that started them where they are: files in a folder, one a rank.

Files, since whoever reads them has to see what a rank wrote that was killed or that hangs.
"""

import contextlib
import faulthandler
import json
import os
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dutyfree._linux import Process

# What makes a rank write its stack.
STACK_SIGNAL = signal.SIGUSR1
# What a rank writes last of all.
THE_END = "the end"


@dataclass(frozen=True)
class State:
    """What a rank wrote last.

    Attributes:
        pid: Its process.
        what: The stage that is through, in words that follow "after".
        steps: Finished ones; None before the first begins.
        error: What it raised, with its type, or None.
        traceback: Of that.
        at: When it wrote this, in seconds of the machine's monotonic clock, which its processes share.
    """

    pid: int
    what: str = "it was started"
    steps: int | None = None
    error: str | None = None
    traceback: str = ""
    at: float = 0.0


class Reporter:
    """A rank's side."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._starter = Process(**json.loads(_starter_path(folder).read_text()))
        self._stack = _stack_path(folder, rank).open("w")
        faulthandler.register(STACK_SIGNAL, self._stack, all_threads=False)
        self.write()

    def write(self, **fields: Any) -> None:
        """Replaces what this rank wrote before. SystemExit where the process that would read it has ended."""
        if self._starter.state is None:
            raise SystemExit("The process that started this run has ended.")
        path = _state_path(self._folder, self._rank)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(State(os.getpid(), at=time.monotonic(), **fields))))
        new.replace(path)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """What is raised inside is written, and raised on."""
        try:
            yield
        except BaseException as error:
            # Where the folder is gone, so is whoever would read it.
            with contextlib.suppress(OSError):
                text = "".join(traceback.format_exception_only(error)).strip()
                self.write(error=text, traceback="".join(traceback.format_exception(error)))
            raise


def begin(folder: Path) -> None:
    """Has the ranks know who started them: this process."""
    _starter_path(folder).write_text(json.dumps(asdict(_this_process())))


def states(folder: Path, processes: int) -> dict[int, State]:
    """Of the ranks that have written something."""
    found = {}
    for rank in range(processes):
        with contextlib.suppress(FileNotFoundError):
            found[rank] = State(**json.loads(_state_path(folder, rank).read_text()))
    return found


def result_path(folder: Path) -> Path:
    """Where rank 0 puts what the run gives back."""
    return folder / "result.pt"


def stack_of(folder: Path, rank: int) -> list[str]:
    """The lines that a rank wrote last upon ``STACK_SIGNAL``, the innermost frame first; none while it is stopped."""
    with contextlib.suppress(FileNotFoundError):
        last = _stack_path(folder, rank).read_text().rpartition("(most recent call first):")[2]
        return [line.strip() for line in last.splitlines() if line.startswith("  File ")]
    return []


def _this_process() -> Process:
    process = Process.of(os.getpid())
    assert process is not None
    return process


def _starter_path(folder: Path) -> Path:
    return folder / "starter.json"


def _state_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def _stack_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stack"
