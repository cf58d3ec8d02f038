"""Timing of calls that differ by hundredths of a microsecond.

Candidates are timed in turn, a block of about a millisecond each, round after round, so that a change of the
processor's frequency meets all of them. What counts is the minimum over the rounds: interference only ever adds time.
"""

import gc
import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

TARGET_BLOCK_NS = 1_500_000

# A block runs its calls and returns the nanoseconds that all of them took.
Block = Callable[[int], int]

# What names a candidate.
Key = TypeVar("Key")


@dataclass(frozen=True)
class Call:
    """The arguments that every candidate of a case is called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Timing:
    """One candidate's time per call in microseconds; spread is the median over the rounds minus the minimum."""

    us: float
    spread_us: float


@dataclass(frozen=True)
class Measurement(Generic[Key]):
    """Microseconds per call of every round, for each candidate.

    `cpu_share` is the part of the elapsed time in which this process ran: below one where others took the processor.
    """

    samples: dict[Key, list[float]]
    cpu_share: float

    def timings(self) -> dict[Key, Timing]:
        return {key: summarise(samples) for key, samples in self.samples.items()}

    @staticmethod
    def joined(parts: Sequence["Measurement[Key]"]) -> "Measurement[Key]":
        """The rounds of several measurements of the same candidates."""
        samples = {key: [sample for part in parts for sample in part.samples[key]] for key in parts[0].samples}
        return Measurement(samples, min(part.cpu_share for part in parts))


def timed_block(function: Callable[..., Any], call: Call) -> Block:
    """A loop around `function(*args, **kwargs)`, written out with the arguments as local variables.

    Each candidate gets a code object of its own. CPython specialises a call site for what it sees there, so that
    candidates sharing one would keep undoing each other's specialisation.
    """
    values = {f"a{index}": value for index, value in enumerate(call.args)}
    values |= {f"k_{name}": value for name, value in call.kwargs.items()}
    arguments = ", ".join(
        [f"a{index}" for index in range(len(call.args))] + [f"{name}=k_{name}" for name in call.kwargs]
    )
    parameters = "".join(f", {name}" for name in ("function", "now", "repeat", *values))
    source = (
        f"def block(count{parameters}):\n"
        f"    calls = repeat(None, count)\n"
        f"    start = now()\n"
        f"    for _ in calls:\n"
        f"        function({arguments})\n"
        f"    return now() - start\n"
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, "<timed block>", "exec"), namespace)
    block = namespace["block"]
    bound = (function, time.perf_counter_ns, itertools.repeat, *values.values())

    def run(count: int) -> int:
        elapsed: int = block(count, *bound)
        return elapsed

    return run


def measure(
    blocks: Mapping[Key, Block],
    rounds: int,
    *,
    max_block_calls: int = 1_000_000,
    settle: Callable[[], None] = lambda: None,
) -> Measurement[Key]:
    """Time per call of each block, over interleaved rounds.

    `settle` runs before each block, untimed; for CUDA it waits for the device, and `max_block_calls` keeps the launch
    queue from filling up, which would make the host wait inside a call.
    """
    keys = list(blocks)
    counts = {key: _block_size(blocks[key], max_block_calls, settle) for key in keys}
    samples: dict[Key, list[float]] = {key: [] for key in keys}
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        cpu_start, start = time.process_time_ns(), time.perf_counter_ns()
        for turn in range(rounds):
            # A different candidate goes first in each round, so that none is always the one after a pause.
            first = turn % len(keys)
            for key in keys[first:] + keys[:first]:
                settle()
                samples[key].append(blocks[key](counts[key]) / counts[key] / 1000)
        elapsed = time.perf_counter_ns() - start
        cpu_share = (time.process_time_ns() - cpu_start) / elapsed
    finally:
        if collecting:
            gc.enable()
    return Measurement(samples, cpu_share)


def summarise(samples_us: Sequence[float]) -> Timing:
    """The minimum, and how far the typical round was from it."""
    best = min(samples_us)
    return Timing(best, statistics.median(samples_us) - best)


def _block_size(block: Block, limit: int, settle: Callable[[], None]) -> int:
    """How many calls fill a block."""
    count = 1
    # Not counted: a first call may import modules, which takes as long as thousands of calls.
    block(count)
    while True:
        settle()
        elapsed = block(count)
        if count >= limit or elapsed >= TARGET_BLOCK_NS / 4:
            return max(1, min(limit, count * TARGET_BLOCK_NS // max(elapsed, 1)))
        count = min(limit, count * 4)


def load_warning(load: float | None = None, cores: int | None = None) -> str | None:
    """Says so where the machine was already busy. The benchmark itself uses one core."""
    load = os.getloadavg()[0] if load is None else load
    cores = (os.cpu_count() or 1) if cores is None else cores
    if load > cores:
        return f"load average {load:.1f} on {cores} cores: other programs are running"
    return None


def reliability_warnings(
    title: str, measurement: Measurement[Key], *, pair: tuple[Key, Key], resolution_us: float = 0.03
) -> list[str]:
    """What makes a case's numbers doubtful, as sentences.

    `pair` are two candidates that are the same function: what they differ by, no other difference can be told from.
    """
    warnings = []
    if measurement.cpu_share < 0.95:
        warnings.append(
            f"{title}: this process had the processor {measurement.cpu_share:.0%} of the time, not all of it"
        )
    timings = measurement.timings()
    first, second = (timings[key] for key in pair)
    difference = abs(first.us - second.us)
    if difference > max(resolution_us, 0.01 * first.us):
        warnings.append(f"{title}: the same function timed twice differs by {difference:.3f} µs")
    plain = timings[pair[0]]
    if plain.spread_us > max(0.1, 0.15 * plain.us):
        warnings.append(
            f"{title}: the plain function's median round took {plain.us + plain.spread_us:.2f} µs per call, "
            f"its fastest {plain.us:.2f}"
        )
    return warnings
