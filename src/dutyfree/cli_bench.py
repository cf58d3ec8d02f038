"""`dutyfree bench`: measures, prints, saves, and holds what was measured to a baseline."""

import enum
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from dutyfree.bench.baseline import Gate
    from dutyfree.bench.results import Results

EXAMPLES = """
Examples:

    dutyfree bench

    dutyfree bench ltx2 --compile --processes 2 --plots plots --json ltx2.json

    dutyfree bench calls --baseline calls.json --fail-above 3%
"""


class Benchmark(str, enum.Enum):
    """What can be measured."""

    calls = "calls"
    training = "training"
    accelerated = "accelerated"
    cpp = "cpp"
    nvfp4 = "nvfp4"
    ltx2 = "ltx2"


# Options that other benchmarks than these don't have.
OF_BENCHMARKS = {
    "compile": (Benchmark.calls, Benchmark.ltx2),
    "steps": (Benchmark.ltx2,),
    "processes": (Benchmark.ltx2,),
    "ulysses": (Benchmark.ltx2,),
    "trace_only": (Benchmark.ltx2,),
    "plots": (Benchmark.ltx2,),
}


def bench(
    benchmark: Annotated[Benchmark, typer.Argument(help="What to measure.")] = Benchmark.calls,
    json: Annotated[Path | None, typer.Option(help="Save the results to this file.", dir_okay=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds: does it run, not how fast.")] = False,
    compile: Annotated[
        bool,
        typer.Option("--compile", help="calls, ltx2: also in code compiled by torch.compile; needs a C++ compiler."),
    ] = False,
    steps: Annotated[int | None, typer.Option(help="ltx2: steps of a run; by default 40, or 2 with --quick.")] = None,
    processes: Annotated[
        int | None, typer.Option(help="ltx2: also runs that so many processes share, guidance x Ulysses.")
    ] = None,
    ulysses: Annotated[int | None, typer.Option(help="ltx2: those of the processes that share a sequence.")] = None,
    trace_only: Annotated[
        bool, typer.Option("--trace-only", help="ltx2: without the model, and so without diffusers.")
    ] = False,
    plots: Annotated[
        Path | None, typer.Option(help="ltx2: save plots into this folder; needs matplotlib.", file_okay=False)
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Compare with this file of --json; exits with 1 where a row is slower.", dir_okay=False),
    ] = None,
    fail_above: Annotated[
        str | None, typer.Option(help="How much slower than the baseline a row may be; by default 3%.")
    ] = None,
) -> None:
    """Measure what a call costs beside a plain function and PyTorch's own ways to register it.

    calls: beside custom_op and a Library registration. training: calls that record a gradient, beside custom_op and a
    hand-written torch.autograd.Function. accelerated: operators that others registered, before and after accelerate.
    cpp: an empty C++ function by dutyfree, pybind11, tvm-ffi, nanobind and TORCH_LIBRARY; compiles them first.
    nvfp4: the NVFP4 operators on all cores of the CPU beside torch.mm and the machine's limits.
    ltx2: a denoising step of LTX-2 in NVFP4 by each way to register its operators: the published trace of its calls,
    and diffusers' model with narrow layers, eager, compiled and over several processes; needs diffusers.
    """
    given: dict[str, Any] = {"compile": compile, "steps": steps, "processes": processes, "ulysses": ulysses}
    given |= {"trace_only": trace_only, "plots": plots}
    for name, value in given.items():
        if value not in (None, False) and benchmark not in OF_BENCHMARKS[name]:
            names = " and ".join(other.value for other in OF_BENCHMARKS[name])
            raise typer.BadParameter(f"--{name.replace('_', '-')} is an option of {names}, not of {benchmark.value}.")
    if fail_above is not None and baseline is None:
        raise typer.BadParameter("--fail-above needs a --baseline to compare with.")
    console = Console()
    # Imported from here on, so that `dutyfree --help` does not wait for torch.
    from dutyfree.bench.baseline import DEFAULT_THRESHOLD, BaselineError, Gate
    from dutyfree.bench.errors import BenchmarkError
    from dutyfree.bench.svg import check_matplotlib

    options: dict[str, Any] = {"progress": _progress(console)}
    if benchmark is Benchmark.ltx2:
        options["plan"] = _ltx2_plan(
            quick=quick, compiled=compile, steps=steps, processes=processes, ulysses=ulysses, trace_only=trace_only
        )
    else:
        options["quick"] = quick
    if benchmark is Benchmark.calls:
        options["with_compile"] = compile
    if plots is not None:
        try:
            check_matplotlib()
        except ImportError as error:
            raise typer.BadParameter(str(error)) from None
    if json is not None:
        try:
            json.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"--json {json}: {error.strerror or error}.") from None
    run, show = _run_and_show(benchmark)
    gate: Gate | None = None
    try:
        if baseline is not None:
            gate = Gate(baseline, fail_above or DEFAULT_THRESHOLD, threads=_threads(benchmark))
        results = run(gate=gate, **options)
    except BaselineError as error:
        raise typer.BadParameter(str(error)) from None
    except BenchmarkError as error:
        Console(stderr=True).print(str(error), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    if json is not None:  # first, so that nothing that comes after loses it
        results.save(json)
    show(results, console)
    if json is not None:
        console.print(f"saved {json}", soft_wrap=True)
    if plots is not None:
        from dutyfree.bench.ltx2.plots import save_plots

        for path in save_plots(results, plots):
            console.print(f"saved {path}", soft_wrap=True)
    if gate is not None and _print_slower(gate, results, console):
        raise typer.Exit(1)


def _progress(console: Console) -> Callable[[str], None]:
    def progress(what: str) -> None:
        # Not rich's live display: its thread would take the interpreter away from what is being timed.
        if console.is_terminal:
            console.print(f"measuring {what}"[: console.width - 1], end="\x1b[K\r", markup=False, highlight=False)

    return progress


def _ltx2_plan(**given: Any) -> Any:
    from dutyfree.bench.ltx2.run import Plan

    try:
        return Plan(**{name: value for name, value in given.items() if value is not None})
    except (ValueError, ImportError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from None


def _threads(benchmark: Benchmark) -> int:
    """That a benchmark runs with."""
    import torch

    return torch.get_num_threads() if benchmark is Benchmark.nvfp4 else 1


def _run_and_show(benchmark: Benchmark) -> tuple[Callable[..., "Results"], Callable[["Results", Console], None]]:
    """What measures, and what prints its results."""
    from dutyfree.bench import report, run

    if benchmark is Benchmark.ltx2:
        from dutyfree.bench.ltx2.report import print_ltx2_report
        from dutyfree.bench.ltx2.run import run_ltx2

        return run_ltx2, print_ltx2_report
    if benchmark is Benchmark.nvfp4:
        return run.run_nvfp4, report.print_nvfp4_report
    runs = {
        Benchmark.calls: run.run_calls,
        Benchmark.training: run.run_training,
        Benchmark.accelerated: run.run_accelerated,
        Benchmark.cpp: run.run_cpp,
    }
    return runs[benchmark], report.print_report


def _print_slower(gate: "Gate", results: "Results", console: Console) -> bool:
    """Says what is slower than the baseline allows; returns whether anything is."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Column, Table

    slower = gate.slower(results.rows)
    limit = f"more than {gate.threshold:.1%} slower than {escape(str(gate.path))}'s"
    if not slower:
        console.print(
            f"No row is {limit} ({len(results.rows)} compared).",
            soft_wrap=True,
        )
        return False
    columns = [Column(name, justify="right", no_wrap=True) for name in ("baseline µs", "now µs", "change", "reference")]
    table = Table(
        Column("slower", no_wrap=True),
        *columns,
        title=(
            f"These rows are {limit}, also when measured again.\n"
            "Reference: how the same case's plain function, or what stands for it, changed; the machine does that."
        ),
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for row in slower:
        case, candidate, device = row.key
        reference = "" if row.reference is None else f"{row.reference} {row.reference_change:+.1%}"
        times = f"{row.before_us:,.3f}", f"{row.us:,.3f}"
        table.add_row(f"{case}: {candidate} ({device})", *times, f"{row.change:+.1%}", reference)
    console.print(table)
    return True
