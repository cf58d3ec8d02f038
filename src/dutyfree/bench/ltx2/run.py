"""``dutyfree bench ltx2``: the published call trace, and steps of the LTX-2 model, by each registration."""

import dataclasses
import statistics
from dataclasses import dataclass
from typing import Any

import torch

from dutyfree.bench.baseline import FURTHER_PASSES, Gate, Key
from dutyfree.bench.candidates import require_path
from dutyfree.bench.ltx2 import model
from dutyfree.bench.ltx2.cases import COMPILED, CUDA_GRAPHS, EAGER, OPTIONS, TIMED, TRACE, processes_case
from dutyfree.bench.ltx2.worker import OPERATORS
from dutyfree.bench.measure import Block, Call, Timing, summarise, timed_block
from dutyfree.bench.process import ANSWER_SECONDS, WorkerError
from dutyfree.bench.results import Results, Row
from dutyfree.bench.run import AGAIN, Progress, run_jobs
from dutyfree.bench.run import Job as Timed
from dutyfree.workloads.ltx2 import PLAIN, Sizes, launch
from dutyfree.workloads.ltx2.diffusers_parts import check_diffusers
from dutyfree.workloads.ltx2.job import Job
from dutyfree.workloads.ltx2.latents import difference, sha256
from dutyfree.workloads.ltx2.layout import Layout
from dutyfree.workloads.ltx2.registrations import NAMESPACE
from dutyfree.workloads.ltx2.trace import GEMM_CALLS, QUANTIZE_CALLS, make_trace

STEPS, QUICK_STEPS = 40, 2
RUNS, QUICK_RUNS = 3, 1


@dataclass(frozen=True)
class Plan:
    """What ``run_ltx2`` measures.

    Attributes:
        steps: Of a run of the denoising loop; None: 40, or 2 where it is quick.
        quick: Few rounds of everything.
        compiled: Also with blocks compiled by torch.compile, on CUDA with CUDA graphs, too.
        processes: More than one: also a run that so many share, guidance x Ulysses.
        ulysses: The processes that share a sequence; None: as the workload has it.
        trace_only: The call trace alone, which needs no diffusers.
        sizes: Of the model.
        timeout: Seconds that an answer of a process may take.
    """

    steps: int | None = None
    quick: bool = False
    compiled: bool = False
    processes: int = 1
    ulysses: int | None = None
    trace_only: bool = False
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    timeout: float = ANSWER_SECONDS

    def __post_init__(self) -> None:
        for name in ("steps", "processes", "ulysses"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; at least 1 is expected.")
        if self.ulysses is not None and self.processes == 1:
            raise ValueError("ulysses divides processes, of which there is 1.")
        if self.trace_only and (self.compiled or self.processes > 1 or self.steps is not None):
            raise ValueError("the trace alone has no model to compile, to divide among processes, or to step.")
        if not self.trace_only:
            check_diffusers()
        if self.processes > 1:
            layout = Layout.of(self.processes, self.ulysses)
            Job(PLAIN, self.run_steps, self.sizes, 0, layout, timeout=self.timeout).check()
            launch.check_devices(self.processes)

    def settings(self) -> dict[str, Any]:
        """What times depend on beyond the machine and the case; a baseline has to have the same."""
        ulysses = {"ulysses": self.ulysses} if self.processes > 1 else {}
        return {"sizes": dataclasses.asdict(self.sizes), "steps": self.run_steps} | ulysses

    @property
    def run_steps(self) -> int:
        return self.steps or (QUICK_STEPS if self.quick else STEPS)

    @property
    def runs(self) -> int:
        return QUICK_RUNS if self.quick else RUNS

    def cases(self) -> list[str]:
        """Of the model, in the order in which they are measured.

        CUDA graphs come after what is compiled without them: they are recorded with the results that the operators
        which are left out returned there.
        """
        if self.trace_only:
            return []
        compiled = [COMPILED] if self.compiled else []
        graphs = [CUDA_GRAPHS] if self.compiled and torch.cuda.is_available() else []
        shared = [processes_case(self.processes)] if self.processes > 1 else []
        return [EAGER, *shared, *compiled, *graphs]

    def keys(self) -> list[Key]:
        """The rows of the model."""
        return [(case, name, _device()) for case in self.cases() for name in TIMED]


def _device() -> str:
    """Where the model runs."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def run_ltx2(plan: Plan, *, progress: Progress = lambda _: None, gate: Gate | None = None) -> Results:
    """Time a step's calls, and steps, by each registration and by plain functions.

    Raises:
        BaselineError: The gate's baseline lacks a row, or is of a model of other sizes.
        BenchmarkError: Registrations differ in latents or graphs, a call took another path than it should, or a process
            died or did not answer in time.
    """
    settings = {} if plan.trace_only else plan.settings()
    if gate is not None:
        gate.require_settings(settings)
        gate.require(plan.keys())
    results = run_jobs(trace_jobs, plan.quick, progress, gate=gate)
    results.facts["calls"] = _trace_calls()
    if plan.trace_only:
        return results
    results.facts |= {"settings": settings, "steps": plan.run_steps, "runs": plan.runs}
    with model.ModelRun(plan.sizes, plan.run_steps, _device(), progress, timeout=plan.timeout) as run:
        for case in plan.cases():
            if case == EAGER:
                measured = run.eager(plan.runs)
            elif case in OPTIONS:
                measured = run.compiled(case, plan.runs)
            else:
                _add_processes(results, plan, run, progress, gate)
                continue
            for turn in range(FURTHER_PASSES):
                if gate is None or not gate.slow_cases(_rows(case, measured.timings())):
                    break
                progress(f"{case}, which was slower than the baseline, again {turn + 1} of {FURTHER_PASSES}")
                run.measure(measured, plan.runs)
            results.rows += _rows(case, measured.timings())
            results.facts[case] = measured.facts | model.derived_facts(measured, plan.run_steps)
            results.warnings += model.warnings_of(measured)
    return results


def _rows(case: str, timings: dict[str, Timing]) -> list[Row]:
    plain = timings[PLAIN].us
    return [
        Row(case, name, timing.us, timing.us - plain, timing.spread_us, _device()) for name, timing in timings.items()
    ]


def trace_jobs() -> list[Timed]:
    """A step's 2,100 calls of empty kernels by each registration, on the CPU and, where torch has it, on CUDA."""
    return [_trace_job(device) for device in (["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])]


def _trace_job(device: str) -> Timed:
    blocks = {}
    for name in TIMED:
        trace = make_trace(name, device)
        if name in ("accelerated", "dutyfree"):
            operators, arguments = trace.operators, trace.arguments
            with torch.inference_mode():
                require_path("direct", TRACE, name, operators.quantize, Call(arguments.quantize, {}))
                require_path("direct", TRACE, name, operators.gemm, Call(arguments.gemm, {}))
        blocks[TRACE, name] = _inferring(timed_block(trace.replay, Call((), {})))
    blocks[TRACE, AGAIN] = _inferring(timed_block(make_trace(PLAIN, device).replay, Call((), {})))
    return Timed(f"{TRACE} ({device})", torch.device(device), blocks, (TRACE, PLAIN), (TRACE, AGAIN))


def _inferring(block: Block) -> Block:
    """In inference mode, as a denoising step is."""

    def run(count: int) -> int:
        with torch.inference_mode():
            return block(count)

    return run


def _trace_calls() -> dict[str, int]:
    return {"quantize": QUANTIZE_CALLS, "gemm": GEMM_CALLS}


def _add_processes(results: Results, plan: Plan, run: model.ModelRun, progress: Progress, gate: Gate | None) -> None:
    """Runs that several processes share, the registrations in turn."""
    case = processes_case(plan.processes)
    step_us: dict[str, list[float]] = {name: [] for name in TIMED}
    facts: dict[str, Any] = {"latents_sha256": {}, "difference": {}, "calls": {}}

    def add_runs(turn: int, words: str, left: model.TimeLeft) -> None:
        for name in model.in_turn(list(TIMED), turn):
            title = f"{case}, {name}"
            progress(f"{title}, {words}{left}")
            one = _shared_run(name, plan, run, title, progress)
            latents = one.video, one.audio
            step_us[name] += [seconds * 1e6 for seconds in one.step_seconds]
            facts["difference"][name] = difference(run.eager_latents, latents)
            facts["calls"][name] = {short: one.calls[f"{NAMESPACE}::{full}"] for short, full in OPERATORS.items()}
            facts.update(guidance=one.guidance, ulysses=one.ulysses)
            model.note_hashes(case, facts["latents_sha256"], {name: sha256(*latents)}, TIMED)
            model.require_alike(case, {name: facts["difference"][name]})
            left.advance(1)

    left = model.TimeLeft(plan.runs * len(TIMED))
    for turn in range(plan.runs):
        add_runs(turn, f"run {turn + 1} of {plan.runs}", left)
    for turn in range(FURTHER_PASSES):
        if gate is None or not gate.slow_cases(_rows(case, _timings(step_us))):
            break
        words = f"which was slower than the baseline, again {turn + 1} of {FURTHER_PASSES}"
        add_runs(plan.runs + turn, words, model.TimeLeft(len(TIMED)))
    results.rows += _rows(case, _timings(step_us))
    facts["seconds_a_run"] = {
        name: statistics.median(samples) / 1e6 * plan.run_steps for name, samples in step_us.items()
    }
    results.facts[case] = facts


def _shared_run(registration: str, plan: Plan, run: model.ModelRun, title: str, progress: Progress) -> launch.Run:
    """One run of the plan's processes, with the tactics that the model's own runs use."""
    try:
        return launch.run(
            registration,
            steps=plan.run_steps,
            processes=plan.processes,
            ulysses=plan.ulysses,
            sizes=plan.sizes,
            tuning=run.tactics if run.tactics.exists() else None,
            timeout=plan.timeout,
            progress=_beginning(title, progress),
        )
    except RuntimeError as error:  # it says which rank, and what that printed
        raise WorkerError(f"benchmark ltx2, {title}: {error}") from None


def _beginning(words: str, progress: Progress) -> Progress:
    return lambda text: progress(f"{words}, {text}")


def _timings(step_us: dict[str, list[float]]) -> dict[str, Timing]:
    return {name: summarise(samples) for name, samples in step_us.items()}
