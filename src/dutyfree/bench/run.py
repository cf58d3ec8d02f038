"""Runs the benchmarks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dutyfree.bench import accelerated, compiled, environment, nvfp4_shapes, training
from dutyfree.bench.baseline import FURTHER_PASSES, Gate
from dutyfree.bench.calls import CASES, Case
from dutyfree.bench.candidates import build, require_path
from dutyfree.bench.measure import Block, Measurement, load_warning, measure, reliability_warnings, timed_block
from dutyfree.bench.results import Results, Row

# All cases are run through several times, since a machine can be slow for longer than one case takes.
PASSES, ROUNDS = 4, 80
QUICK_PASSES, QUICK_ROUNDS = 1, 15
# The baseline a second time, under a name of its own: it shows what differences this run can resolve.
AGAIN = "again"
# Fewer launches than CUDA's queue holds, so that the host never waits inside a call.
CUDA_BLOCK_CALLS = 200


@dataclass(frozen=True)
class Job:
    """What is timed together, so that it can be compared: blocks by (case, candidate), one of them the baseline."""

    title: str
    device: torch.device
    blocks: dict[tuple[str, str], Block]
    baseline: tuple[str, str]
    again: tuple[str, str] | None = None
    # For calls that take long: a round of this job is worth so many of others.
    rounds_each: int = 1

    def row_keys(self) -> list[tuple[str, str, str]]:
        """Case, candidate and device of the rows that it makes."""
        return [(*key, self.device.type) for key in self.blocks if key != self.again]

    def measure(self, rounds: int) -> Measurement[tuple[str, str]]:
        rounds = max(1, rounds // self.rounds_each)
        if self.device.type == "cuda":
            return measure(self.blocks, rounds, max_block_calls=CUDA_BLOCK_CALLS, settle=torch.cuda.synchronize)
        return measure(self.blocks, rounds)


Progress = Callable[[str], None]


def run_calls(
    *,
    quick: bool = False,
    with_compile: bool = False,
    progress: Progress = lambda _: None,
    gate: Gate | None = None,
) -> Results:
    """Time every case with every candidate, on the CPU and, where torch has it, on CUDA (host time only)."""

    def jobs() -> list[Job]:
        devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
        jobs = [case_job(case, torch.device(device)) for device in devices for case in CASES]
        if with_compile:
            progress("torch.compile")
            jobs.append(compiled_job())
        return jobs

    return run_jobs(jobs, quick, progress, gate=gate)


def run_training(*, quick: bool = False, progress: Progress = lambda _: None, gate: Gate | None = None) -> Results:
    """Time operators with an autograd formula against hand-written Functions, forward and with the backward pass."""
    return run_jobs(
        lambda: [training_job(case, step) for case in training.CASES for step in training.STEPS],
        quick,
        progress,
        gate=gate,
    )


def run_accelerated(*, quick: bool = False, progress: Progress = lambda _: None, gate: Gate | None = None) -> Results:
    """Time operators that others registered, before and after ``accelerate``."""
    return run_jobs(
        lambda: [
            *(python_job(case) for case in accelerated.PYTHON_CASES),
            *(aten_job(name) for name in accelerated.aten_calls()),
        ],
        quick,
        progress,
        gate=gate,
    )


def run_cpp(*, quick: bool = False, progress: Progress = lambda _: None, gate: Gate | None = None) -> Results:
    """Time a C++ function called from Python in each way there is; compiles it by a C++ compiler and Ninja."""
    from dutyfree.bench import cpp  # torch.utils.cpp_extension takes its time

    def jobs() -> list[Job]:
        progress("compiling")
        again = (cpp.CASE, AGAIN)
        blocks = cpp.blocks() | {again: timed_block(cpp.three, cpp.call_of(3))}
        return [Job(cpp.CASE, torch.device("cpu"), blocks, (cpp.CASE, "python"), again)]

    results = run_jobs(jobs, quick, progress, gate=gate)
    results.warnings += cpp.missing()
    return results


def run_nvfp4(*, quick: bool = False, progress: Progress = lambda _: None, gate: Gate | None = None) -> Results:
    """Time the NVFP4 operators on all cores beside PyTorch's products; compiles what it compares with."""
    from dutyfree.bench import nvfp4, nvfp4_torch  # registers the operators

    def jobs() -> list[Job]:
        progress("compiling, and quantizing weights")
        return nvfp4_jobs(nvfp4_shapes.QUICK_SHAPES if quick else nvfp4_shapes.SHAPES)

    results = run_jobs(jobs, quick, progress, threads=torch.get_num_threads(), gate=gate)
    results.environment |= nvfp4.describe()
    results.facts = nvfp4.facts(results)
    results.warnings += nvfp4_torch.missing()
    return results


def nvfp4_jobs(shapes: list[nvfp4_shapes.Shape]) -> list[Job]:
    from dutyfree.bench import nvfp4, peaks

    cpu = torch.device("cpu")
    host = nvfp4.host_blocks()
    jobs = [
        Job(case, cpu, {key: block for key, block in host.items() if key[0] == case}, (case, "allocates.object"))
        for case in (nvfp4_shapes.HOST_QUANTIZE, nvfp4_shapes.HOST_GEMM)
    ]
    if peak_blocks := peaks.blocks(nvfp4_shapes.PEAKS_CASE):
        jobs.append(Job(nvfp4_shapes.PEAKS_CASE, cpu, peak_blocks, next(iter(peak_blocks)), rounds_each=4))
    jobs.append(Job("quantize", cpu, nvfp4.quantize_blocks(), (nvfp4_shapes.QUANTIZE_CASE, "dutyfree"), rounds_each=4))
    jobs.append(
        Job("quantize in torch", cpu, nvfp4.torch_blocks(), (nvfp4_shapes.TORCH_CASE, "dutyfree"), rounds_each=40)
    )
    for shape in shapes:
        blocks = nvfp4.product_blocks(shape)
        baseline, again = (shape.case, nvfp4_shapes.BF16), (shape.case, AGAIN)
        blocks[again] = nvfp4.product_blocks(shape)[baseline]
        jobs.append(Job(shape.case, cpu, blocks, baseline, again, _product_rounds_each(shape)))
    return jobs


def _product_rounds_each(shape: nvfp4_shapes.Shape) -> int:
    """So that all products together take a minute and a half: a round of the largest takes two seconds."""
    if shape in nvfp4_shapes.FLOORS:
        return 8
    return 80 if shape.operations > 2 * 10**10 else 26


def run_jobs(
    make_jobs: Callable[[], list[Job]],
    quick: bool,
    progress: Progress,
    *,
    threads: int = 1,
    gate: Gate | None = None,
) -> Results:
    """Measure jobs, pass after pass; those with a case that is slower than a gate allows in a few passes more.

    Raises:
        BaselineError: The gate's baseline lacks a row. Nothing has been measured then.
    """
    passes, rounds = (QUICK_PASSES, QUICK_ROUNDS) if quick else (PASSES, ROUNDS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        results = Results(environment.describe())
        busy = load_warning()
        if busy is not None:
            results.warnings.append(busy)
        jobs = make_jobs()
        if gate is not None:
            gate.require(key for job in jobs for key in job.row_keys())
        measured: list[list[Measurement[tuple[str, str]]]] = [[] for _ in jobs]
        for turn in range(passes):
            for job, measurements in zip(jobs, measured, strict=True):
                progress(f"{job.title}, pass {turn + 1} of {passes}")
                measurements.append(job.measure(rounds))
        for turn in range(FURTHER_PASSES if gate is not None else 0):
            assert gate is not None
            slow = gate.slow_cases(_summary(jobs, measured)[0])
            for job, measurements in zip(jobs, measured, strict=True):
                if any(case in slow for case, _ in job.blocks):
                    progress(f"{job.title}, which was slower than the baseline, again {turn + 1} of {FURTHER_PASSES}")
                    measurements.append(job.measure(rounds))
        results.rows, warnings = _summary(jobs, measured)
        results.warnings += warnings
        return results
    finally:
        torch.set_num_threads(before)


def case_job(case: Case, device: torch.device) -> Job:
    call = case.make_call(device)
    candidates = build(case)
    for name, candidate in candidates.items():
        if name.startswith("dutyfree."):
            require_path("direct", case.name, name, candidate, call)
    blocks = {(case.name, name): timed_block(candidate, call) for name, candidate in candidates.items()}
    again = (case.name, AGAIN)
    blocks[again] = timed_block(case.make_function(), call)
    return Job(f"{case.name} ({device.type})", device, blocks, (case.name, "plain"), again)


def training_job(case: training.TrainingCase, step: str) -> Job:
    blocks = training.blocks(case, step)
    baseline = (training.key_of(case, step), training.BASELINE)
    again = (baseline[0], AGAIN)
    blocks[again] = training.blocks(case, step)[baseline]
    return Job(baseline[0], torch.device("cpu"), blocks, baseline, again)


def python_job(case: Case) -> Job:
    blocks = accelerated.python_blocks(case)
    again = (case.name, AGAIN)
    blocks[again] = timed_block(case.make_function(), case.make_call(torch.device("cpu")))
    return Job(f"accelerated: {case.name}", torch.device("cpu"), blocks, (case.name, "plain"), again)


def aten_job(name: str) -> Job:
    blocks = accelerated.aten_blocks(name)
    baseline, again = (f"aten::{name}", accelerated.BEFORE), (f"aten::{name}", AGAIN)
    blocks[again] = accelerated.aten_blocks(name)[baseline]
    return Job(baseline[0], torch.device("cpu"), blocks, baseline, again)


def compiled_job() -> Job:
    device = torch.device("cpu")
    return Job("torch.compile", device, compiled.blocks(device), (compiled.EAGER, "plain"))


def _summary(jobs: list[Job], measured: list[list[Measurement[tuple[str, str]]]]) -> tuple[list[Row], list[str]]:
    """The rows of what was measured, and what makes it doubtful."""
    rows: list[Row] = []
    warnings: list[str] = []
    for job, measurements in zip(jobs, measured, strict=True):
        measurement = Measurement.joined(measurements)
        if job.again is not None:
            warnings += reliability_warnings(job.title, measurement, pair=(job.baseline, job.again))
        timings = measurement.timings()
        baseline = timings[job.baseline].us
        rows += [
            Row(*key, timing.us, timing.us - baseline, timing.spread_us, job.device.type)
            for key, timing in timings.items()
            if key != job.again
        ]
    return rows, warnings
