"""Runs a function of a test module in a Python process of its own: a crash there is a failure here, not the end.

Most of the time of a short process goes into starting Python and importing torch. One process does that, and nothing
else, and is forked for each function. What is forked ends as any process does, so that a crash at the exit counts too.
"""

import atexit
import faulthandler
import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMEOUT = 120  # seconds
# What is read when a process starts.
AT_START = ("PYTHON", "MALLOC_", "LD_", "OMP_")


def run_isolated(function: Callable[[], None], **environment: str) -> str:
    """Calls ``function``, which a test module defines at its top level, in a new process; returns what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "module": function.__module__,
            "function": function.__name__,
            "environment": {**os.environ, **environment},
            "folder": folder,
        }
        if any(name.startswith(AT_START) for name in environment):
            server = start_server(environment)
            status = ask(server, request)
            server.stdin.close()
            server.wait()
        else:
            try:
                status = ask(kept_server(), request)
            except BaseException:  # as of pytest-timeout: its answer would be taken for the next one's
                kept_server().kill()
                kept_server.cache_clear()
                raise
        output, errors = (Path(folder, name).read_text() for name in ("output", "errors"))
    assert status == 0, f"exit status {status}\n{errors}"
    return output


def start_server(environment: dict[str, str]) -> Any:
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", __file__],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )


@functools.cache
def kept_server() -> Any:
    server = start_server({})
    atexit.register(server.stdin.close)
    return server


def ask(server: Any, request: dict[str, Any]) -> int:
    """The exit status of a fork that did what was requested."""
    server.stdin.write(json.dumps(request).encode() + b"\n")
    child = int(server.stdout.readline())
    if not select.select([server.stdout], [], [], TIMEOUT)[0]:
        os.kill(child, signal.SIGABRT)  # faulthandler shows where it was
    return int(server.stdout.readline())


def serve() -> None:
    """Forks for each line of the standard input, and answers with the process and its exit status."""
    import pytest  # noqa: F401
    import torch  # noqa: F401

    gc.freeze()  # a collection need not look through torch each time
    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            fulfil(request)
            return
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def fulfil(request: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(request["environment"])
    folder = request["folder"]
    for descriptor, file in enumerate((os.devnull, f"{folder}/output", f"{folder}/errors")):
        opened = os.open(file, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    faulthandler.enable()
    getattr(importlib.import_module(request["module"]), request["function"])()


if __name__ == "__main__":
    serve()
