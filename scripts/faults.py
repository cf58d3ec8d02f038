"""Whether the checks find the core's seeded faults (csrc/seeded_fault.h): a table; exit status 1 unless all.

Run by `make faults`, with the variant `faults` of the core. A fault is live when the call of tests/fault_checks.py that
it spoils is wrong with it and right without it. The fuzzer then has to find it on its own.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dutyfree import _core

CHECKS = Path(__file__).parents[1] / "tests" / "fault_checks.py"
# Not where real differences go.
SCRIPTS = "build/faults/fuzz"
COMMAND = "from dutyfree.cli import app; app()"


@dataclass(frozen=True)
class Finished:
    status: int
    output: str
    seconds: float

    @property
    def ended(self) -> str:
        return "crash" if self.status < 0 else "yes"


def run(fault: str, *arguments: str) -> Finished:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "DUTYFREE_FAULT": fault},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Finished(done.returncode, done.stdout, time.monotonic() - started)


def is_live(fault: str) -> bool:
    sound, spoiled = run("", str(CHECKS), fault), run(fault, str(CHECKS), fault)
    if sound.status != 0:
        print(f"{fault}: its call fails without the fault too\n{sound.output}", file=sys.stderr)
    return sound.status == 0 and (spoiled.status < 0 or "AssertionError" in spoiled.output)


def by_fuzzer(fault: str, cases: int, seed: int) -> tuple[str, str, float]:
    """Whether the fuzzer finds it, after how many cases (as far as it says so), and in how many seconds."""
    # The faults lie in what both sides share. One of them alone takes half the cases.
    options = ("--side", "fast", "--cases", str(cases), "--seed", str(seed), "--save", SCRIPTS)
    done = run(fault, "-c", COMMAND, "check", "--fuzz", *options)
    # Python's own exit status is 1 as well, for an error of the fuzzer's.
    if done.status > 1 or (done.status == 1 and "differs from torch.library.custom_op" not in done.output):
        raise SystemExit(f"the fuzzer itself failed with {fault}:\n{done.output}")
    counted = re.search(r"([\d,]+) cases", done.output)
    return ("no" if done.status == 0 else done.ended, counted[1] if counted else "?", done.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=15000, help="how long the fuzzer may look for one fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    names, _ = _core.seeded_faults()  # type: ignore[attr-defined]  # this build's only

    table = Table("fault", "live", "found by the fuzzer", "cases", "seconds")
    missed = 0
    for fault in options.fault or names:
        live = is_live(fault)
        found, cases, seconds = by_fuzzer(fault, options.cases, options.seed)
        missed += not live or found == "no"
        table.add_row(fault, "yes" if live else "NO", found, cases, f"{seconds:.0f}")
        print(f"{fault}: live {live}, found {found}", file=sys.stderr)
    Console().print(table)
    sound, cases, seconds = by_fuzzer("", options.cases, options.seed)
    print(f"without a fault: {'nothing found' if sound == 'no' else 'A DIFFERENCE'} in {cases} cases, {seconds:.0f} s")
    missed += sound != "no"
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
