"""`dutyfree tune`: runs a program, or operators at given sizes, within dutyfree.autotune() and saves the choices."""

import contextlib
import enum
import importlib
import importlib.util
import json as json_format
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from dutyfree.autotune import AutoTuner

PROGRAM = "program"
# dutyfree.autotune's MOST_RUNS and the cache's ranks; importing them would make `dutyfree --help` wait for torch.
MOST_RUNS = 2**31 - 1
LAST_RANK = 10**9 - 1
# Values in one matrix, far above what a machine holds; torch's own errors for more do not say which size it was.
MOST_VALUES = 2**48
# Values of K that share a scale factor.
BLOCK = 16
EXAMPLES = """
Examples:

    dutyfree tune generate.py --steps 1

    dutyfree tune --cache tuned.json --cold -m my_model.generate

    dutyfree tune nvfp4 --shape 1024,4096,4096 --shape 126,2048,2048
"""


class TuneGroup(typer.core.TyperGroup):
    """A first word that names no operators is a program."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in self.commands and args[0] != PROGRAM:
            return super().resolve_command(ctx, args)
        return PROGRAM, self.commands[PROGRAM], args


app = typer.Typer(cls=TuneGroup, no_args_is_help=True, subcommand_metavar="PROGRAM [ARGS]... | nvfp4 ...")


class OutputType(str, enum.Enum):
    """Types of a GEMM's result, by torch's names."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


class Model(str, enum.Enum):
    """Models whose GEMMs' sizes are known."""

    ltx2 = "ltx2"


@app.callback(epilog=EXAMPLES)
def options(
    context: typer.Context,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="The file to add to. By default the one that programs read by themselves: DUTYFREE_TUNING_CACHE or "
            "dutyfree/tuning.json in the user's cache folder.",
            dir_okay=False,
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=MOST_RUNS, help="Runs of each tactic that count; the fastest is its time.")
    ] = 10,
    warmup: Annotated[int, typer.Option(min=0, max=MOST_RUNS, help="Runs before those.")] = 3,
    cold: Annotated[bool, typer.Option("--cold", help="Empty the caches before each run that counts.")] = False,
    rank: Annotated[
        int | None, typer.Option(min=0, max=LAST_RANK, help="The file's section; by default RANK's, or 0.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="PROGRAM is a module's name.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the choices as JSON, as the last line.")] = False,
) -> None:
    """Measure the tactics of tuned operators and save the fastest for the sizes that a program, or --shape, has.

    PROGRAM runs as `python PROGRAM ARGS...` would run it; operators in its process measure their tactics when they meet
    sizes for the first time. A ctrl-C saves what was measured until then.
    """
    context.obj = {"cache": cache, "repeats": repeats, "warmup": warmup, "cold": cold, "rank": rank}
    context.meta["dutyfree.json"], context.meta["dutyfree.module"] = json, module


@app.command(
    PROGRAM,
    hidden=True,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
def program(context: typer.Context, target: str) -> None:
    """Run a program within autotune()."""
    module = context.meta["dutyfree.module"]
    _check_program(target, module=module)
    from dutyfree._program import run

    with _tuning(context):
        run(target, context.args, module=module)


@app.command()
def nvfp4(
    context: typer.Context,
    model: Annotated[Model | None, typer.Option(help="Every size of this model's GEMMs.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="M,N,K of a GEMM; may be repeated.")] = None,
    dtype: Annotated[OutputType, typer.Option(help="The results' type.")] = OutputType.bfloat16,
) -> None:
    """The NVFP4 operators, at given sizes of their GEMMs: M rows of activations, N of weights, K values in each."""
    if model is None and not shape:
        raise typer.BadParameter("nothing to tune: --model or --shape says the sizes.")
    shapes = [_shape(text) for text in shape or ()]
    try:
        tuning = importlib.import_module("dutyfree.ops.tuning")
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"this dutyfree has no NVFP4 operators ({error}).") from error
    import torch

    with _tuning(context):
        if model is not None:
            shapes += tuning.model_shapes(model.value)
        try:
            tuning.tune_shapes(shapes, getattr(torch, dtype.value))
        except (MemoryError, RuntimeError) as error:
            if not _lacks_memory(error):
                raise
            raise typer.BadParameter(f"a size is too large for this machine's memory: {_first_line(error)}") from None


def _lacks_memory(error: BaseException) -> bool:
    import torch

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _check_program(target: str, *, module: bool) -> None:
    """BadParameter where there is nothing to run, in whose place Python's loader would have a traceback."""
    path = Path(target)
    if module:
        if not _has_module(target):
            raise typer.BadParameter(f"there is no module {target!r}.")
    elif not path.exists():
        raise typer.BadParameter(f"there is no program {target!r}, and no command of that name.")
    elif path.is_dir() and not (path / "__main__.py").is_file():
        raise typer.BadParameter(f"the folder {target!r} has no __main__.py.")


def _has_module(name: str) -> bool:
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        # A package that lacks another one has a traceback worth showing.
        return not f"{name}.".startswith(f"{error.name}.")
    except ValueError:  # an empty name, or one that was loaded without a spec
        return False
    finally:
        sys.path.remove(folder)


def _shape(text: str) -> tuple[int, int, int]:
    try:
        m, n, k = (int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"--shape {text!r}: three whole numbers M,N,K are expected.") from None
    if min(m, n, k) < 1:
        raise typer.BadParameter(f"--shape {text!r}: sizes from 1 are expected.")
    if k % BLOCK:
        raise typer.BadParameter(f"--shape {text!r}: K is {k}, and a multiple of {BLOCK} is expected.")
    if max(m * n, m * k, n * k) > MOST_VALUES:
        raise typer.BadParameter(f"--shape {text!r}: a matrix of these sizes is larger than any memory.")
    return m, n, k


@contextlib.contextmanager
def _tuning(context: typer.Context) -> Iterator[None]:
    """autotune() as the options say; at the end, however it comes, the choices are printed."""
    # Imported here so that `dutyfree --help` does not wait for torch.
    from dutyfree import _tuning_cache
    from dutyfree.autotune import AutoTuner, autotune

    settings = dict(context.obj)
    try:
        settings["cache"] = settings["cache"] or _tuning_cache.default_path()
        _tuning_cache.check_path(settings["cache"])
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no folder for the user
        raise typer.BadParameter(str(error)) from None
    try:
        with autotune(**settings):
            yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        if context.meta["dutyfree.json"]:
            choices = [{"operator": choice.operator, **choice.as_json()} for choice in AutoTuner.get().choices()]
            print(json_format.dumps({"cache": str(settings["cache"]), "choices": choices}), file=sys.stdout, flush=True)
        else:
            _print_choices(AutoTuner.get(), settings["cache"])


def _print_choices(tuner: "AutoTuner", cache: Path) -> None:
    from rich.table import Column, Table

    console = Console(stderr=True)
    choices = tuner.choices()
    if not choices:
        console.print("No tuned operator was called.")
        return
    table = Table("operator", "configuration", "sizes", "tactic", Column("µs", justify="right"))
    for choice in choices:
        cells = choice.operator, choice.configuration, " ".join(map(str, choice.dims)), choice.tactic
        # Their texts are no markup.
        table.add_row(*(cell.replace("[", r"\[") for cell in cells), f"{choice.us:,.1f}")
    console.print(table)
    console.print(f"The cache: {cache}", soft_wrap=True)
