"""An object in a process of its own, whose methods are called from here: for what a process can have only one of."""

import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from dutyfree._linux import die_with_parent
from dutyfree.bench.errors import BenchmarkError

ANSWER_SECONDS = 600.0
# After the connection is closed, a process that is idle ends by itself.
_END_SECONDS = 5.0
_SHOWN_LINES = 30


class WorkerError(BenchmarkError):
    """A worker raised, died, or did not answer in time; the text has the end of what it printed."""


class Worker:
    """The object that ``make(*args)`` returns, made and used in a new process.

    ``ask`` calls a method and waits; ``start`` and ``answer`` do that in two steps, so that several workers work at
    once. A ``with`` closes it. After a WorkerError the process is gone.

    Args:
        title: What errors call it.
        make: A function or class of a module's top level, importable in the new process.
        args: Its arguments, which can be pickled.
        timeout: Seconds that an answer may take.
    """

    def __init__(
        self,
        title: str,
        make: Callable[..., object],
        *args: Any,
        timeout: float = ANSWER_SECONDS,
    ) -> None:
        self.title, self._timeout = title, timeout
        self._asked = ""  # the method that is being called
        descriptor, name = tempfile.mkstemp(prefix="dutyfree_worker_", suffix=".txt")
        os.close(descriptor)
        self._printed = Path(name)
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, make, args), name=title, daemon=True)
        try:
            self._process.start()
        except BaseException:
            self._connection.close()
            self._printed.unlink()
            raise
        finally:
            theirs.close()  # so that its end here is the only one, and the process's death is seen at once

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.start(method, *args, **kwargs)
        return self.answer()

    def start(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Have a method called; ``answer`` must follow."""
        self._asked = method
        try:
            self._connection.send((method, args, kwargs))
        except (BrokenPipeError, ConnectionResetError):
            raise self._failed(self._death()) from None

    def answer(self) -> Any:
        try:
            if not self._connection.poll(self._timeout):
                raise self._failed(f"did not answer within {self._timeout:g} s")
            right, value = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._failed(self._death()) from None
        if not right:
            raise self._failed("raised an exception", value)
        self._asked = ""
        return value

    def _death(self) -> str:
        self._process.join(_END_SECONDS)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"ended with exit code {code}"

    def _failed(self, what: str, trace: str = "") -> WorkerError:
        printed = "\n".join(self._printed.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])
        self.close()
        parts = [f"the worker {self.title} {what} in {self._asked}.", trace.rstrip()]
        if printed:
            parts.append(f"The end of what it printed:\n{printed}")
        return WorkerError("\n".join(part for part in parts if part))

    def close(self) -> None:
        """End the process, also one that does not answer. Again does nothing."""
        self._connection.close()
        if self._process.is_alive():
            self._process.join(0 if self._asked else _END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._printed.unlink(missing_ok=True)


def _serve(connection: Connection, printed: str, make: Callable[..., object], args: tuple[Any, ...]) -> None:
    """The new process's program: a method after another, until the connection is closed."""
    if sys.platform == "linux":
        die_with_parent()
    _print_to(printed)
    # A ctrl-C reaches every process of the terminal; the one that waits for this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    made: object = None
    while True:
        try:
            method, given, named = connection.recv()
        except EOFError:
            return
        try:
            if made is None:
                made = make(*args)
            answer = True, getattr(made, method)(*given, **named)
        except BaseException:
            answer = False, traceback.format_exc()
        try:
            connection.send(answer)
        except BrokenPipeError:
            return


def _print_to(path: str) -> None:
    """Have what this process and its libraries print go to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
