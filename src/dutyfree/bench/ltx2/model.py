"""Steps of the LTX-2 model by each registration: a process for each, which step in turn while the others wait."""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from dutyfree.bench.errors import BenchmarkError
from dutyfree.bench.ltx2.cases import EAGER, OPTIONS, TIMED
from dutyfree.bench.ltx2.ranks import RANKS
from dutyfree.bench.ltx2.worker import ABSENT, Counted, Stepper, Steps, tensors
from dutyfree.bench.measure import Timing, summarise
from dutyfree.bench.process import ANSWER_SECONDS, Worker
from dutyfree.workloads.ltx2 import PLAIN, REGISTRATIONS, Sizes
from dutyfree.workloads.ltx2.latents import difference, sha256
from dutyfree.workloads.ltx2.registrations import NAMESPACE

# Steps that a process makes in its turn.
TURN_STEPS = 4
# Compiled code rounds to bfloat16 in other places, and quantizing makes a step to the next code of it: over 40 steps
# of 48 blocks the latents differ by 0.08 of their norm, over the two of a quick run, which two processes share, by
# 0.36 (2026-11-30, torch 2.13.0, two CPUs). Latents that have nothing in common differ by 1.4. That registrations do
# the same is not left to this: their latents have to be equal.
LARGEST_DIFFERENCE = 0.5

Progress = Callable[[str], None]


@dataclass
class Mode:
    """What was measured of a mode.

    Attributes:
        case: Its name in the results.
        host_us: Each step's, by registration, ``ABSENT`` included.
        turns_s: Seconds a step of each turn, the device's work included.
        cpu_share: The lowest of a turn's.
        facts: Beyond times, as they go into the results.
    """

    case: str
    host_us: dict[str, list[float]] = field(default_factory=dict)
    turns_s: dict[str, list[float]] = field(default_factory=dict)
    cpu_share: float = 1.0
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, registration: str, steps: Steps) -> None:
        self.host_us.setdefault(registration, []).extend(steps.host_us)
        self.turns_s.setdefault(registration, []).append(steps.seconds / len(steps.host_us))
        self.cpu_share = min(self.cpu_share, steps.cpu_share)

    def timings(self) -> dict[str, Timing]:
        """Microseconds a step of the registrations that are compared."""
        return {name: summarise(self.host_us[name]) for name in TIMED}


class ModelRun:
    """The processes, and the runs that they make together. A ``with`` ends them.

    Args:
        sizes: Of the model.
        steps: Of a run.
        device: "cpu" or "cuda".
        progress: Is told what is being done, and for how long still.
        timeout: Seconds that one answer of a process may take.
    """

    def __init__(
        self, sizes: Sizes, steps: int, device: str, progress: Progress, *, timeout: float = ANSWER_SECONDS
    ) -> None:
        self._sizes, self._steps, self._device = sizes, steps, device
        self._progress, self._timeout = progress, timeout
        self._workers: dict[str, Worker] = {}
        self._ending = contextlib.ExitStack()
        self._eager: tuple[Tensor, Tensor] | None = None

    def __enter__(self) -> "ModelRun":
        try:
            self._make_workers()
        except BaseException:
            self._ending.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _make_workers(self) -> None:
        self._progress(f"the model, {len(TIMED) + 1} processes make it")
        folder = Path(self._ending.enter_context(tempfile.TemporaryDirectory(prefix="dutyfree_bench_")))
        self.tactics = folder / "tactics.json"
        for name in (*TIMED, ABSENT):
            worker = Worker(name, Stepper, name, self._sizes, self._device, timeout=self._timeout)
            self._workers[name] = self._ending.enter_context(worker)
        first, *others = self._workers.values()
        first.ask("tune", str(self.tactics))
        _ask_all(others, "load", str(self.tactics))

    def eager(self, runs: int) -> Mode:
        """The model as it is."""
        mode = Mode(EAGER)
        counted: dict[str, Counted] = {name: self._workers[name].ask("count") for name in TIMED}
        mode.facts["calls"] = {name: counts.calls for name, counts in counted.items()}
        mode.facts["paths"] = {name: counts.paths for name, counts in counted.items()}
        self._workers[ABSENT].ask("leave_out")
        self.measure(mode, runs)
        return mode

    def compiled(self, case: str, runs: int) -> Mode:
        """The model with compiled blocks, from now on."""
        mode = Mode(case)
        graphs: dict[str, list[str]] = {}
        for name, worker in self._workers.items():  # one after another: what one compiles the next finds in a cache
            self._progress(f"{case}, torch.compile of {name}")
            graphs[name] = worker.ask("compile", OPTIONS[case])
        mode.facts["graph"] = _require_same_graph({name: graphs[name] for name in REGISTRATIONS})
        self._workers[ABSENT].ask("leave_out")
        self.measure(mode, runs)
        return mode

    def measure(self, mode: Mode, runs: int) -> None:
        """Make runs, each registration's in turns of a few steps, and add them to what was measured of a mode."""
        left = TimeLeft(runs * self._steps)
        for run in range(runs):
            _ask_all(self._workers.values(), "begin", self._steps)
            done = 0
            while done < self._steps:
                self._progress(f"{mode.case}, run {run + 1} of {runs}, step {done + 1} of {self._steps}{left}")
                count = min(TURN_STEPS, self._steps - done)
                for name in in_turn(list(self._workers), done // TURN_STEPS):
                    mode.add(name, self._workers[name].ask("step", count))
                done += count
                left.advance(count)
            self._check_latents(mode)

    def _check_latents(self, mode: Mode) -> None:
        latents = {name: tensors(self._workers[name].ask("latents")) for name in TIMED}
        hashes = {name: sha256(*of) for name, of in latents.items()}
        # Compiled, what plain functions call has another name in the graph, and other code may be made of it.
        same = TIMED if mode.case == EAGER else REGISTRATIONS
        note_hashes(mode.case, mode.facts.setdefault("latents_sha256", {}), hashes, same)
        if mode.case == EAGER:
            self._eager = latents[PLAIN]
            return
        assert self._eager is not None
        mode.facts["difference"] = {name: difference(self._eager, of) for name, of in latents.items()}
        require_alike(mode.case, mode.facts["difference"])

    @property
    def eager_latents(self) -> tuple[Tensor, Tensor]:
        assert self._eager is not None
        return self._eager


def _ask_all(workers: Any, method: str, *args: Any) -> None:
    """All at once."""
    waiting = list(workers)
    for worker in waiting:
        worker.start(method, *args)
    for worker in waiting:
        worker.answer()


def in_turn(names: list[str], turn: int) -> list[str]:
    """A different one first in each turn, so that none is always the one after the same other."""
    first = turn % len(names)
    return names[first:] + names[:first]


def _require_same_graph(graphs: dict[str, list[str]]) -> dict[str, Any]:
    """What a block's graph calls how often; BenchmarkError where the registrations' graphs differ."""
    (first, calls), *others = graphs.items()
    for name, other in others:
        if other != calls:
            odd = next(
                (at for at, pair in enumerate(zip(calls, other, strict=False)) if pair[0] != pair[1]),
                min(len(calls), len(other)),
            )
            raise BenchmarkError(
                f"benchmark ltx2: torch.compile gets another graph from {name} than from {first}: {len(other)} and "
                f"{len(calls)} calls; the first that differs, number {odd}: {other[odd : odd + 1]} and "
                f"{calls[odd : odd + 1]}"
            )
    counts = {target: calls.count(target) for target in dict.fromkeys(calls)}
    operators = {name: count for name, count in counts.items() if name.startswith(f"{NAMESPACE}.")}
    return {"calls": len(calls), "operators": operators}


def note_hashes(case: str, known: dict[str, str], hashes: dict[str, str], same: Iterable[str]) -> None:
    """Add a run's hashes of latents to those of earlier runs.

    Raises:
        BenchmarkError: An earlier run of a registration has another one, or one registration of ``same`` than another.
    """
    for name, found in hashes.items():
        if known.setdefault(name, found) != found:
            raise BenchmarkError(
                f"benchmark ltx2, {case}: two runs of {name} with one seed have other latents: {known[name]}, {found}"
            )
    compared = {name: known[name] for name in same if name in known}
    if len(set(compared.values())) > 1:
        raise BenchmarkError(f"benchmark ltx2, {case}: the registrations' latents differ: {compared}")


def require_alike(case: str, differences: dict[str, dict[str, float]]) -> None:
    """BenchmarkError where latents are something else than what the eager run in one process has."""
    for name, values in differences.items():
        # Written so that a NaN is no small difference.
        if not values["relative"] <= LARGEST_DIFFERENCE:
            raise BenchmarkError(
                f"benchmark ltx2, {case}: {name}'s latents differ from the eager run's by {values['relative']:.2f} of "
                f"their norm; rounding in other places explains up to {LARGEST_DIFFERENCE}."
            )


def derived_facts(mode: Mode, steps: int) -> dict[str, Any]:
    """What follows from the steps' times.

    ``seconds_a_run``: the median turn's seconds a step, times the steps. ``absent_us``: a step whose operators return
    results that are there. ``share``: (step - that) / step: what the operators take of a step, their kernels included
    on a CPU. ``expected_max_us``: the mean of the slowest of N ranks' steps, see :mod:`.ranks`.
    """
    timings = mode.timings()
    absent = summarise(mode.host_us[ABSENT]).us
    return {
        "seconds_a_run": {name: statistics.median(mode.turns_s[name]) * steps for name in TIMED},
        "absent_us": absent,
        "share": {name: 1 - absent / timing.us for name, timing in timings.items()},
        "expected_max_us": {
            name: {str(ranks): expected_max(mode.host_us[name], ranks) for ranks in RANKS} for name in TIMED
        },
    }


def expected_max(samples: list[float], count: int) -> float:
    """The mean of the largest of ``count`` independent draws, with replacement, from ``samples``.

    The k-th smallest of n is the largest with probability (k/n)^count - ((k-1)/n)^count.
    """
    total = len(samples)
    return sum(
        value * ((place / total) ** count - ((place - 1) / total) ** count)
        for place, value in enumerate(sorted(samples), 1)
    )


def warnings_of(mode: Mode) -> Iterator[str]:
    """What makes a mode's numbers doubtful, as sentences."""
    if mode.cpu_share < 0.95:
        yield f"{mode.case}: in one turn a process had a processor {mode.cpu_share:.0%} of the time, not all of it"
    plain = mode.host_us[PLAIN]
    halves = [min(half) for half in (plain[::2], plain[1::2]) if half]
    if len(halves) == 2 and abs(halves[0] - halves[1]) > 0.01 * min(halves):
        apart = abs(halves[0] - halves[1]) / 1000
        yield f"{mode.case}: the fastest of every second step and of the others differ by {apart:.2f} ms"
    timing = summarise(plain)
    if timing.spread_us > 0.15 * timing.us:
        yield (
            f"{mode.case}: the plain functions' median step took {(timing.us + timing.spread_us) / 1000:.1f} ms, their "
            f"fastest {timing.us / 1000:.1f}"
        )


class TimeLeft:
    """About how long the rest takes, for a progress line: ", about 95 s left", once something is done."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._start = total, 0, time.monotonic()

    def advance(self, count: int) -> None:
        self._done += count

    def __str__(self) -> str:
        if self._done == 0:
            return ""
        each = (time.monotonic() - self._start) / self._done
        return f", about {each * (self._total - self._done):.0f} s left"
