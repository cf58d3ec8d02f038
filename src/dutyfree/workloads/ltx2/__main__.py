"""`python -m dutyfree.workloads.ltx2`: a run in this process, over several, or a rank of torchrun's."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from dutyfree._linux import die_with_parent
from dutyfree.workloads.ltx2.job import Job, sizes_of
from dutyfree.workloads.ltx2.latents import sha256
from dutyfree.workloads.ltx2.launch import run_job
from dutyfree.workloads.ltx2.layout import Layout
from dutyfree.workloads.ltx2.pace import Pace
from dutyfree.workloads.ltx2.rank import Part, run_part
from dutyfree.workloads.ltx2.rank_state import THE_END, Reporter, result_path

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    registration: Annotated[str, typer.Option(help="custom_op, library, accelerated, dutyfree, or plain for none.")],
    steps: Annotated[int, typer.Option(help="Of the scheduler.")] = 8,
    seed: Annotated[int, typer.Option(help="Of weights, latents and text embeddings.")] = 0,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the blocks.")] = False,
    processes: Annotated[
        int | None, typer.Option(help="Over so many processes on this machine; under torchrun, as many as it has.")
    ] = None,
    ulysses: Annotated[
        int | None, typer.Option(help="Of them, those that share the video tokens: all or half; by default half.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds without progress until the run is given up.")] = 120.0,
    threads: Annotated[int, typer.Option(help="Of each process.")] = 1,
    tuning: Annotated[
        Path | None, typer.Option(help="A tuning cache; by default tactics are measured first.", dir_okay=False)
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Where torch.save puts the latents.", dir_okay=False)] = None,
    sizes: Annotated[
        str, typer.Option(help="Of the model, as JSON: '{\"blocks\": 2}'; by default 48 narrow blocks.")
    ] = "{}",
    report: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Denoise random latents with LTX-2's transformer, its NVFP4 operators registered in one of several ways.

    Also for torchrun: `torchrun --nproc-per-node 4 -m dutyfree.workloads.ltx2 --registration dutyfree`. Two processes
    split classifier-free guidance, more split the video tokens, too.
    """
    world = _torchruns("WORLD_SIZE")
    rank = 0 if world is None else _torchruns("RANK")
    if rank is None:
        raise typer.BadParameter("the environment has WORLD_SIZE, but no RANK; torchrun sets both.")
    if world is not None and processes not in (None, world):
        raise typer.BadParameter(f"--processes {processes}: torchrun has started {world}.")
    processes = processes if world is None else world
    if save is not None and not save.parent.is_dir():
        raise typer.BadParameter(f"--save {save}: there is no folder {save.parent}.")
    try:
        layout = Layout.of(1 if processes is None else processes, ulysses)
        job = Job(registration, steps, sizes_of(sizes), seed, layout, tuning, threads, compile, timeout)
        job.check()
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from None
    if report is not None:
        _reported(job, report)
        return
    if layout.processes > 1 and world is None:
        part = _started(job)
    else:
        pace = Pace(steps, _say)
        part = run_part(job, lambda what, done: pace.reached(done) if rank == 0 and done is not None else None)
        if rank != 0:
            return
    _print(job, part)
    if save is not None:
        torch.save({"video": part.video, "audio": part.audio}, save)


def _torchruns(name: str) -> int | None:
    """A number that torchrun puts into the environment."""
    text = os.environ.get(name)
    if text is not None and not text.isdecimal():
        raise typer.BadParameter(f"the environment has {name}={text!r}; torchrun sets it to a number.")
    return None if text is None else int(text)


def _reported(job: Job, folder: Path) -> None:
    """A rank of :func:`.launch.run_job`."""
    die_with_parent()
    rank = int(os.environ["RANK"])
    reporter = Reporter(folder, rank)
    with reporter.errors():
        part = run_part(job, lambda what, steps: reporter.write(what=what, steps=steps))
        if rank == 0:
            torch.save(dataclasses.asdict(part), result_path(folder))
        reporter.write(what=THE_END, steps=job.steps)
    # The interpreter would take another second or more to free what it imported.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _started(job: Job) -> Part:
    try:
        return run_job(job, _say)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except RuntimeError as error:
        _say(str(error))
        raise typer.Exit(1) from None


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _print(job: Job, part: Part) -> None:
    seconds = sum(part.step_seconds)
    split = f"guidance {job.layout.guidance} × ulysses {job.layout.ulysses}"
    print(f"{job.registration}, {_number(job.layout.processes, 'process')} ({split}), {_number(job.steps, 'step')}")
    print(
        f"{seconds:.3f} s, {seconds / job.steps * 1e3:.2f} ms a step, the shortest {min(part.step_seconds) * 1e3:.2f}"
    )
    for name, count in part.calls.items():
        print(f"{count} calls of {name} a step")
    print(f"latents: video {_checksum(part.video)}, audio {_checksum(part.audio)}")


def _number(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}{'es' if what.endswith('s') else 's'}"


def _checksum(latents: Tensor) -> str:
    """Equal for equal bytes."""
    return sha256(latents)[:12]


if __name__ == "__main__":
    app()
