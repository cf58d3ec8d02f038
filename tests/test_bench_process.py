"""An object in a process of its own: what it answers, and what is said and left when it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dutyfree.bench.process import Worker, WorkerError


class Counter:
    """Counts up, and goes wrong when it is asked to."""

    def __init__(self, start: int) -> None:
        if start < 0:
            raise ValueError("it starts from 0")
        self.at = start

    def add(self, count: int, *, times: int = 1) -> int:
        self.at += count * times
        return self.at

    def fail(self) -> None:
        print("almost there")
        raise KeyError("of nothing")

    def die(self) -> None:
        os.write(2, b"dying\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self) -> None:
        sys.exit(3)

    def hang(self) -> None:
        time.sleep(600)


@contextmanager
def counter(start: int = 0, **options: float) -> Iterator[Worker]:
    worker = Worker("counter", Counter, start, **options)
    try:
        with worker:
            yield worker
    finally:
        assert worker.pid is not None
        assert not Path(f"/proc/{worker.pid}").exists()


def test_methods_are_called_there_and_their_exceptions_shown() -> None:
    with counter(5) as worker:
        assert worker.ask("add", 2) == 7
        worker.start("add", 1, times=3)
        assert worker.answer() == 10
        with pytest.raises(WorkerError) as error:
            worker.ask("fail")
    text = str(error.value)
    assert text.startswith("the worker counter raised an exception in fail.")
    assert "KeyError: 'of nothing'" in text
    assert text.endswith("The end of what it printed:\nalmost there")


def test_a_worker_that_is_killed_is_an_error_at_once() -> None:
    begin = time.monotonic()
    with counter() as worker, pytest.raises(WorkerError, match=r"was killed by signal 9 .SIGKILL. in die\.") as error:
        worker.ask("die")
    assert "dying" in str(error.value)
    assert time.monotonic() - begin < 100  # and not the ten minutes that an answer may take


def test_a_worker_that_does_not_answer_is_ended() -> None:
    # What it takes to start counts, too.
    with counter(timeout=30) as worker:
        worker.ask("add", 1)
        worker._timeout = 0.5
        with pytest.raises(WorkerError, match=r"counter did not answer within 0\.5 s in hang\."):
            worker.ask("hang")


def test_an_object_that_can_not_be_made_is_an_error() -> None:
    with counter(-1) as worker, pytest.raises(WorkerError, match="ValueError: it starts from 0"):
        worker.ask("add", 1)


def test_a_worker_is_ended_in_the_middle_of_its_work() -> None:
    def interrupted() -> None:
        with counter() as worker:
            worker.start("hang")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel does it")
def test_a_worker_that_works_ends_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Not also a zombie, which the process that inherits it may leave for a while."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


if __name__ == "__main__":  # the parent above
    worker = Worker("told to hang", Counter, 0)
    worker.ask("add", 1)
    worker.start("hang")
    print(worker.pid, flush=True)
    worker.answer()
