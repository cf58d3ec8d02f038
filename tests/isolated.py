"""Runs a function of a test module in a Python process of its own: a crash there is a failure here, not the end."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def run_isolated(function: Callable[[], None], **environment: str) -> str:
    """Calls ``function``, which a test module defines at its top level, in a new process; returns what it printed."""
    source = f"import {function.__module__} as module; module.{function.__name__}()"
    finished = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", source],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, f"exit status {finished.returncode}\n{finished.stderr}"
    return finished.stdout
