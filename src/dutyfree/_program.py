"""Runs a Python program within this process, as `python` would."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def run(target: str, arguments: Sequence[str], *, module: bool) -> None:
    """Runs a script, or a module by its name, as ``__main__`` with the arguments in ``sys.argv``."""
    sys.argv = [target, *arguments]
    if module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(target).resolve().parent))
        runpy.run_path(target, run_name="__main__")
