"""Whether the checks find the core's seeded faults (csrc/seeded_fault.h): a table; exit status 1 unless all.

Run by `make faults`, with the variant `faults` of the core. A fault is live when the call of tests/fault_checks.py that
it spoils is wrong with it and right without it. The fuzzer then has to find it on its own.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import re
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CHECKS = Path(__file__).parents[1] / "tests" / "fault_checks.py"
# Not where real differences go.
SCRIPTS = Path("build/faults/fuzz")

# A process for each fault, since the core reads DUTYFREE_FAULT when it is imported and some faults crash. They are
# forks of one that has imported what takes seconds, and nothing of dutyfree.
fork = multiprocessing.get_context("forkserver")
IMPORTED_BEFORE = ["torch", "torch.testing", "torch._decomp.decompositions_for_jvp", "hypothesis", "rich.table"]


@dataclass(frozen=True)
class Finished:
    status: int
    output: str
    seconds: float

    @property
    def ended(self) -> str:
        return "crash" if self.status < 0 else "yes"


def in_a_fork(fault: str, output: str, function: Callable[..., None], *arguments: object) -> None:
    with open(output, "w") as file:  # noqa: PTH123
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    os.environ["DUTYFREE_FAULT"] = fault
    os.environ["KINETO_LOG_LEVEL"] = "99"
    function(*arguments)


def run(fault: str, function: Callable[..., None], *arguments: object) -> Finished:
    """Calls a function of this module in a new process, where the core makes that mistake."""
    started = time.monotonic()
    with tempfile.NamedTemporaryFile("r") as output:
        process = fork.Process(target=in_a_fork, args=(fault, output.name, function, *arguments))
        process.start()
        process.join()
        assert process.exitcode is not None
        return Finished(process.exitcode, output.read(), time.monotonic() - started)


def check(fault: str) -> None:
    sys.path.insert(0, str(CHECKS.parent))
    sys.argv = [str(CHECKS), fault]
    runpy.run_path(str(CHECKS), run_name="__main__")


def fuzz(cases: int, seed: int) -> None:
    from dutyfree.check.fuzz.run import run_fuzz

    # The faults lie in what both sides share. One of them alone takes half the cases. That a difference gets smaller is
    # not what is looked for here.
    report, failure = run_fuzz(cases, seed, sides=("fast",), save=SCRIPTS, shrink=False)
    print(f"{report.cases:,} cases")
    if failure is not None:
        print(failure.text)


def is_live(fault: str) -> bool:
    sound, spoiled = run("", check, fault), run(fault, check, fault)
    if sound.status != 0:
        print(f"{fault}: its call fails without the fault too\n{sound.output}", file=sys.stderr)
    return sound.status == 0 and (spoiled.status < 0 or "AssertionError" in spoiled.output)


def by_fuzzer(fault: str, cases: int, seed: int) -> tuple[str, str, float]:
    """Whether the fuzzer finds it, after how many cases (as far as it says so), and in how many seconds."""
    done = run(fault, fuzz, cases, seed)
    if done.status > 0:
        raise SystemExit(f"the fuzzer itself failed with {fault or 'no fault'}:\n{done.output}")
    counted = re.search(r"([\d,]+) cases", done.output)
    found = done.status < 0 or "differs from torch.library.custom_op" in done.output
    return (done.ended if found else "no", counted[1] if counted else "?", done.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=15000, help="how long the fuzzer may look for one fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    from dutyfree import _core

    names, _ = _core.seeded_faults()  # type: ignore[attr-defined]  # this build's only
    faults = options.fault or names

    table = Table("fault", "live", "found by the fuzzer", "cases", "seconds")
    missed = 0
    fork.set_forkserver_preload(IMPORTED_BEFORE)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as several:
        without = several.submit(by_fuzzer, "", options.cases, options.seed)  # first, since it takes longest
        judged = several.map(lambda fault: (is_live(fault), *by_fuzzer(fault, options.cases, options.seed)), faults)
        for fault, (live, found, cases, seconds) in zip(faults, judged, strict=True):
            missed += not live or found == "no"
            table.add_row(fault, "yes" if live else "NO", found, cases, f"{seconds:.0f}")
            print(f"{fault}: live {live}, found {found}", file=sys.stderr)
    Console().print(table)
    sound, cases, seconds = without.result()
    print(f"without a fault: {'nothing found' if sound == 'no' else 'A DIFFERENCE'} in {cases} cases, {seconds:.0f} s")
    missed += sound != "no"
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
