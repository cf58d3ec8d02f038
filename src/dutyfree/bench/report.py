"""Prints results as tables."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dutyfree.bench.calls import CASES
from dutyfree.bench.compiled import CALLS, COMPILED, EAGER
from dutyfree.bench.nvfp4_shapes import BANDWIDTH_FLOOR, BF16, FLOORS, FP32, PAIR
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
    print_warnings(results, console)


def print_nvfp4_report(results: Results, console: Console) -> None:
    print_environment(results, console)
    console.print(calls_table(results, "cpu", BF16))
    for line in nvfp4_lines(results):
        console.print(line, soft_wrap=True)
    print_warnings(results, console)


def print_warnings(results: Results, console: Console) -> None:
    for warning in results.warnings:
        console.print(f"[yellow]unreliable:[/yellow] {escape(warning)}", soft_wrap=True)


def nvfp4_lines(results: Results) -> list[str]:
    """The machine's limits, and the ratios that have a floor."""
    peaks = ", ".join(f"{name} {value:.0f}" for name, value in results.facts["peak_gop_s"].items())
    rates = results.facts["gb_s"]
    share = rates["dutyfree"] / rates["copy_stream"]
    lines = [f"Peaks in Gop/s: {peaks}." if peaks else "No peaks: the machine has none of the instructions."]
    quantize = f"Quantize: {rates['dutyfree']:.1f} GB/s, {share:.0%} of a copy's {rates['copy_stream']:.1f}"
    lines.append(f"{quantize}, floor {BANDWIDTH_FLOOR:.0%}{_missed(share < BANDWIDTH_FLOOR)}.")
    for shape, floors in FLOORS.items():
        times = {name: results.find(shape.case, name) for name in (BF16, FP32, PAIR)}
        for name, floor in ((BF16, floors.bf16), (FP32, floors.fp32)):
            other, pair = times[name], times[PAIR]
            if other is not None and pair is not None:
                ratio = other.us / pair.us
                lines.append(
                    f"{shape.case}: {ratio:.2f} times as fast as {name}, floor {floor}{_missed(ratio < floor)}."
                )
    return lines


def _missed(missed: bool) -> str:
    return ": missed" if missed else ""


def print_environment(results: Results, console: Console) -> None:
    for name, value in results.environment.items():
        console.print(f"[bold]{name:>9}[/bold]  {escape(str(value))}", highlight=False)


def calls_table(results: Results, device: str, baseline_name: str = BASELINE) -> Table:
    """One line a candidate. The ratio is the baseline's time over this candidate's: how many times faster it is."""
    host_only = ", host time only" if device == "cuda" else ""
    table = Table(
        title=(
            f"Microseconds per call, {device} tensors{host_only}.\n"
            f"Tax: call - the first of its group. Ratio: {baseline_name} / this, how many times faster."
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
        baseline = results.find(case, baseline_name, device)
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
