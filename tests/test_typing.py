"""A type checker sees the decorated function's own parameters and result."""

import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

USAGE = Path(__file__).with_name("typed_usage.py")


def test_mypy_accepts_right_calls_and_finds_exactly_the_wrong_ones() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(USAGE)],
        cwd=USAGE.parent.parent,  # shares the settings and the cache of `make lint`
        capture_output=True,
        text=True,
        check=False,
    )
    found = [
        (int(line), code)
        for line, code in re.findall(r"typed_usage\.py:(\d+): error: .*\[([a-z-]+)\]", finished.stdout)
    ]
    expected = [
        (number, line.split("# expected error: ")[1])
        for number, line in enumerate(USAGE.read_text().splitlines(), 1)
        if "# expected error: " in line
    ]
    assert found == expected, finished.stdout + finished.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert files("dutyfree").joinpath("py.typed").is_file()
