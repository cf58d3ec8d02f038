"""Prints results as tables."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dutyfree.bench.calls import CASES
from dutyfree.bench.compiled import CALLS, COMPILED, EAGER
from dutyfree.bench.results import Results
from dutyfree.bench.training import CASES as TRAINING_CASES
from dutyfree.bench.training import STEPS, key_of

BASELINE = "custom_op"
# Calls of a denoising step of a video diffusion transformer (LTX-2 with NVFP4): its quantize and its gemm operator.
STEP = {"list_result": 1260, "gemm": 840}

TITLES = {case.name: case.title for case in CASES} | {
    EAGER: f"{CALLS} times clone in a function, eager",
    COMPILED: f"{CALLS} times clone in a function, compiled",
}
TITLES |= {key_of(case, step): f"{case.title}: {step}" for case in TRAINING_CASES for step in STEPS}


def print_report(results: Results, console: Console) -> None:
    print_environment(results, console)
    for device in results.devices():
        console.print(calls_table(results, device))
        line = step_line(results, device)
        if line is not None:
            console.print(line, soft_wrap=True)
    for warning in results.warnings:
        console.print(f"[yellow]unreliable:[/yellow] {escape(warning)}", soft_wrap=True)


def print_environment(results: Results, console: Console) -> None:
    for name, value in results.environment.items():
        console.print(f"[bold]{name:>9}[/bold]  {escape(str(value))}", highlight=False)


def calls_table(results: Results, device: str) -> Table:
    """One line a candidate. The ratio is custom_op's time over this candidate's: how many times faster it is."""
    host_only = ", host time only" if device == "cuda" else ""
    table = Table(
        title=(
            f"Microseconds per call, {device} tensors{host_only}.\n"
            f"Tax: call - the first of its group. Ratio: {BASELINE} / this, how many times faster."
        ),
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("call", no_wrap=True)
    for name in ("time", "tax", "spread", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = [row for row in results.rows if row.device == device]
    for case in dict.fromkeys(row.case for row in rows):
        baseline = results.find(case, BASELINE, device)
        table.add_row(f"[bold]{escape(TITLES.get(case, case))}[/bold]")
        for row in (row for row in rows if row.case == case):
            table.add_row(
                f"  {row.candidate}",
                _number(row.us),
                _number(row.tax_us, "+"),
                _number(row.spread_us),
                f"{baseline.us / row.us:.1f}" if baseline is not None else "",
            )
        table.add_section()
    return table


def _number(us: float, sign: str = "") -> str:
    return f"{us:{sign}.3f}" if abs(us) < 100 else f"{us:{sign}.0f}"


def step_saving_ms(results: Results, device: str, replaced: str, by: str = "dutyfree.object") -> float | None:
    """Milliseconds that a step with STEP's calls saves when `by` takes the place of `replaced`."""
    total = 0.0
    for case, count in STEP.items():
        old, new = results.find(case, replaced, device), results.find(case, by, device)
        if old is None or new is None:
            return None
        total += count * (old.us - new.us) / 1000
    return total


def step_line(results: Results, device: str) -> str | None:
    savings = {replaced: step_saving_ms(results, device, replaced) for replaced in ("custom_op", "library")}
    if any(saving is None for saving in savings.values()):
        return None
    calls = " + ".join(f"{count} {case}" for case, count in STEP.items())
    return (
        f"A step of {calls} calls takes {savings['custom_op']:.1f} ms less than with custom_op "
        f"and {savings['library']:.1f} ms less than with Library.define + impl."
    )
