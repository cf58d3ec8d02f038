"""Runs of the LTX-2 workload in ranks that fork from one process, which has done the imports of all of them.

A rank that torchrun starts spends most of its time on imports. What torchrun adds is tested in test_ltx2_launch.py.
"""

import functools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from dutyfree import _core
from dutyfree.autotune import Choice
from dutyfree.workloads.ltx2 import PLAIN, REGISTRATIONS, Sizes
from dutyfree.workloads.ltx2.job import Job
from dutyfree.workloads.ltx2.layout import Layout

SIZES = Sizes(blocks=2)
STEPS = 3
SPLITS = {
    "guidance 2": Layout(2, 1),
    "ulysses 2": Layout(1, 2),
    "guidance 2, ulysses 2": Layout(2, 2),
    "ulysses 4": Layout(1, 4),
}


@dataclass(frozen=True)
class Case:
    """A run, and what is changed for it in each rank first: names of functions of this module."""

    job: Job
    change: str = "nothing"


@dataclass(frozen=True)
class Outcome:
    """What each rank ended with: its latents and calls, or an error."""

    video: list[Tensor]
    audio: list[Tensor]
    calls: list[dict[str, int]]
    errors: list[str]


def cases(tuning: Path) -> dict[str, Case]:
    """All runs that the tests look at, by name."""

    def case(registration: str = "dutyfree", layout: Layout = Layout(), change: str = "nothing", **job: int) -> Case:  # noqa: B008
        made = {"steps": STEPS, "sizes": SIZES, "timeout": 60.0, **job}
        return Case(Job(registration, layout=layout, tuning=tuning, **made), change)

    return {
        "alone": case(),
        "alone, one row at a time": case(change="one_row_at_a_time"),
        **{name: case(layout=layout) for name, layout in SPLITS.items()},
        **{f"{name} in 2": case(name, Layout(1, 2)) for name in (*REGISTRATIONS, PLAIN)},
        "traced": case(layout=Layout(1, 2), change="traced"),
        "no exchange": case(layout=Layout(1, 2), change="no_exchange"),
        "float32": case(change="float32"),
        **{f"{name}, float32": case(layout=layout, change="float32") for name, layout in SPLITS.items()},
        **{
            f"{wrong}, float32": case(layout=Layout(1, 2), change=f"float32 {wrong}")
            for wrong in ("heads_of_another_rank", "tokens_in_another_order")
        },
        "disagreeing": Case(Job("dutyfree", STEPS, SIZES, layout=Layout(1, 2), timeout=60.0), "disagreeing"),
        "drifting": case(layout=Layout(2, 1), change="drifting"),
    }


# --- what ranks change ------------------------------------------------------------------------------------------------


def nothing() -> None:
    pass


def one_row_at_a_time() -> None:
    """The model sees the embeddings without and with the prompt one after the other, not as one batch."""
    from dutyfree.workloads.ltx2.denoise import Denoising

    both = Denoising._velocities

    def velocities(self: Denoising, timestep: Tensor) -> tuple[Tensor, Tensor]:
        whole, parts = self._text, []
        for row in range(2):
            self._text = tuple(text[row : row + 1] for text in whole)
            parts.append(both(self, timestep))
        self._text = whole
        video, audio = (torch.cat(each) for each in zip(*parts, strict=True))
        return video, audio

    Denoising._velocities = velocities


def float32() -> None:
    """The model and all that it takes in float32 and without NVFP4: what splits change of the rounding stays small."""
    from dutyfree.workloads.ltx2 import model

    Tensor.bfloat16 = Tensor.float
    model.make_model = lambda *arguments: model.make_unquantized(*arguments).float()


def traced() -> None:
    """The blocks run as the graphs that torch.compile makes of them, without Inductor's code for those."""
    from dutyfree.workloads.ltx2 import model

    compile_blocks = model.compile_blocks
    model.compile_blocks = functools.partial(compile_blocks, backend="eager")
    wanted = Job.__getattribute__
    Job.__getattribute__ = lambda self, name: True if name == "compiled" else wanted(self, name)


def heads_of_another_rank() -> None:
    from dutyfree.workloads.ltx2.ulysses import Exchange

    Exchange.own_heads = lambda self, whole: whole.chunk(self.size, 2)[self.rank - 1]


def tokens_in_another_order() -> None:
    from dutyfree.workloads.ltx2.ulysses import Exchange

    right = Exchange.tokens_for_heads
    Exchange.tokens_for_heads = lambda self, parts: torch.cat(right(self, parts).chunk(self.size, 2)[::-1], 2)


def no_exchange() -> None:
    from dutyfree.workloads.ltx2 import parallel

    parallel.split_attentions = lambda blocks, exchange: None


def disagreeing() -> None:
    """Ranks have chosen different tactics before they agree."""
    from dutyfree.autotune import AutoTuner

    tuner = AutoTuner.get()
    find = tuner.agree

    def agree() -> list[Choice]:
        tactic = ("bf16_mm", best_target())[int(os.environ["RANK"])]
        for choice in tuner.choices():
            _core.restore_choice(*choice.key, tactic, 1.0)
        changed = find()
        assert len(changed) == (0, len(tuner.choices()))[int(os.environ["RANK"])], changed
        return changed

    tuner.agree = agree


def drifting() -> None:
    """One rank's audio is a bit off."""
    from dutyfree.workloads.ltx2.denoise import Denoising

    right = Denoising.latents

    def latents(self: Denoising) -> tuple[Tensor, Tensor]:
        video, audio = right(self)
        return video, audio + int(os.environ["RANK"]) * 1e-6

    Denoising.latents = latents


# --- the process that the ranks fork from -----------------------------------------------------------------------------


def main(folder: Path) -> None:
    from dutyfree.workloads.ltx2 import diffusers_parts

    diffusers_parts.transformer_class()
    diffusers_parts.scheduler_class()
    tuning = tuning_path(folder)
    _fork(lambda: make_tuning(tuning))
    for index, (name, case) in enumerate(cases(tuning).items()):
        outcome = _run(case, folder / f"case{index}")
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(outcome))


def make_tuning(path: Path) -> None:
    """One tactic for every size that these runs have, however they are split.

    Tactics round differently, so that runs with different ones can't be compared bit by bit.
    """
    from dutyfree.workloads.ltx2 import register

    register("dutyfree")
    import dutyfree
    from dutyfree.workloads.ltx2.denoise import Denoising
    from dutyfree.workloads.ltx2.model import make_model

    with dutyfree.autotune(path, repeats=1, warmup=0, rank=0):
        Denoising(make_model(SIZES), SIZES, 1).step()
    contents = json.loads(path.read_text())
    operators = contents["ranks"]["0"]["operators"]
    for name, choices in operators.items():
        weights = {tuple(choice["dims"][1:]) for choice in choices}
        operators[name] = [
            {**choices[0], "dims": [rows, *weight], "tactic": best_target()}
            for weight in sorted(weights)
            for rows in (1, 2, 4, 8, 16, 32, 64)
        ]
    path.write_text(json.dumps(contents))


def best_target() -> str:
    from dutyfree import ops

    return ops.nvfp4.available_targets()[-1]


def tuning_path(folder: Path) -> Path:
    return folder / "tuning.json"


def _run(case: Case, folder: Path) -> Outcome:
    folder.mkdir()
    count = case.job.layout.processes
    pids = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            _child(lambda: _rank(case, folder / f"rank{rank}"))  # noqa: B023
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    found = [pickle.loads((folder / f"rank{rank}").read_bytes()) for rank in range(count)]
    parts = [part for part in found if not isinstance(part, str)]
    return Outcome(
        [part.video for part in parts],
        [part.audio for part in parts],
        [part.calls for part in parts],
        [part for part in found if isinstance(part, str)],
    )


def _rank(case: Case, result: Path) -> None:
    from dutyfree.workloads.ltx2.rank import run_part
    from dutyfree.workloads.ltx2.registrations import register

    register(case.job.registration)
    # Ranks meet in a file: a port that is free now may be taken when rank 0 listens there.
    meeting = {"init_method": f"file://{result.parent}/meeting", "world_size": case.job.layout.processes}
    dist.init_process_group = functools.partial(dist.init_process_group, rank=int(os.environ["RANK"]), **meeting)
    for change in case.change.split():
        globals()[change]()
    try:
        kept: object = run_part(case.job)
    except Exception as error:
        kept = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    result.write_bytes(pickle.dumps(kept))


def _fork(work: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        _child(work)
    assert os.waitpid(pid, 0)[1] == 0


def _child(work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


# --- the tests' side --------------------------------------------------------------------------------------------------


@functools.cache
def results() -> Path:
    """The folder with the outcomes of all cases, which run once for all tests."""
    kept.append(tempfile.TemporaryDirectory(prefix="dutyfree-test-ltx2-"))
    folder = Path(kept[0].name)
    finished = subprocess.run(
        [sys.executable, "-X", "faulthandler", __file__, str(folder)],
        env={**os.environ, "DUTYFREE_TUNING_CACHE": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    (folder / "stderr").write_text(finished.stderr)
    return folder


kept: list[tempfile.TemporaryDirectory[str]] = []


def outcome(name: str) -> Outcome:
    """Of a case that ended well."""
    found = any_outcome(name)
    assert not found.errors, found.errors
    return found


def any_outcome(name: str) -> Outcome:
    found: Outcome = pickle.loads((results() / f"{name}.pickle").read_bytes())
    return found


if __name__ == "__main__":
    # Pickles name this module, which the tests import under its name.
    import ltx2_forked

    ltx2_forked.main(Path(sys.argv[1]))
