"""The `dutyfree` command."""

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dutyfree import cli_bench, cli_tune

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(cli_tune.app, name="tune")
app.command(epilog=cli_bench.EXAMPLES)(cli_bench.bench)


class ComparedSide(str, enum.Enum):
    """What ``check --fuzz`` compares with custom_op."""

    fast = "fast"
    accelerated = "accelerated"
    both = "both"


def _print_path(name: str) -> Callable[[bool], None]:
    """What prints a folder of cpp_paths and ends the command, for a flag."""

    def print_path(asked: bool) -> None:
        if asked:
            from dutyfree import cpp_paths

            print(getattr(cpp_paths, name)())  # one line for scripts, so not rich's, which would wrap it
            raise typer.Exit()

    return print_path


@app.callback()
def main(
    include: Annotated[
        bool,
        typer.Option(
            "--include",
            callback=_print_path("get_include"),
            is_eager=True,
            help="Print the folder with dutyfree/op.h, and exit.",
        ),
    ] = False,
    cmake_dir: Annotated[
        bool,
        typer.Option(
            "--cmake-dir",
            callback=_print_path("cmake_dir"),
            is_eager=True,
            help="Print the folder for CMake's dutyfree_ROOT, and exit.",
        ),
    ] = False,
) -> None:
    """Custom operators for PyTorch without the dispatcher tax."""


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A script, or with -m a module; its arguments follow.")],
    module: Annotated[bool, typer.Option("-m", help="TARGET is a module's name.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="At the end, print the calls of each operator.")] = False,
) -> None:
    """Run a program with every operator accelerated, as `python TARGET ...` would run it.

    The processes that it starts accelerate theirs, too: DUTYFREE_AUTO=1 is set for them.
    """
    import os

    import dutyfree
    from dutyfree import _program

    os.environ["DUTYFREE_AUTO"] = "1"
    dutyfree.accelerate()
    try:
        _program.run(target, context.args, module=module)
    finally:
        if stats:
            from dutyfree.explain import print_stats

            print_stats(Console(stderr=True))


@app.command()
def check(
    fuzz: Annotated[
        bool, typer.Option("--fuzz", help="Compare generated calls of generated operators; needs Hypothesis.")
    ] = False,
    cases: Annotated[int, typer.Option(min=1, help="Calls and later registrations to compare.")] = 10_000,
    seed: Annotated[int, typer.Option(help="The same seed makes the same cases.")] = 0,
    side: Annotated[
        ComparedSide,
        typer.Option(help="What is compared: operators of fast_custom_op, or of custom_op after dutyfree.accelerate."),
    ] = ComparedSide.both,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this time.")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Where the script of a difference goes, and of a crash.", file_okay=False)
    ] = None,
) -> None:
    """Compare operators with torch.library.custom_op's; exits with 1 at the first difference that is not documented."""
    if not fuzz:
        raise typer.BadParameter("nothing to check: the only check is --fuzz so far.")
    import faulthandler
    import os

    # A crash of the process says where; the profiler says nothing.
    faulthandler.enable()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from dutyfree.check.fuzz.compare import SIDES
    from dutyfree.check.fuzz.report import Report
    from dutyfree.check.fuzz.run import run_fuzz

    console = Console(soft_wrap=True)

    def progress(report: Report) -> None:
        if console.is_terminal:
            console.print(f"{report.cases:,} cases, {report.seconds:.0f} s", end="\x1b[K\r")

    sides = SIDES if side is ComparedSide.both else (side.value,)
    report, failure = run_fuzz(cases, seed, sides=sides, seconds=seconds, save=save, progress=progress)
    report.print(console)
    if failure is not None:
        console.print(failure.text, markup=False, highlight=False)
        console.print(f"\n{failure.script()}", markup=False, highlight=False)
        if failure.path is not None:
            console.print(f"The script: {failure.path}")
        raise typer.Exit(1)
