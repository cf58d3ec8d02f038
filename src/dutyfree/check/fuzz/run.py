"""Runs the fuzzer: Hypothesis draws cases, every step is compared, a difference is shrunk and saved as a script."""

import contextlib
import gc
import importlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import hypothesis
import torch
from hypothesis import HealthCheck, Phase
from torch._dispatch.python import enable_python_dispatcher
from torch.utils.flop_counter import FlopCounterMode

from dutyfree.check.fuzz.calls import STEP_COUNTS, Call, drawn_steps
from dutyfree.check.fuzz.compare import SIDES, Compared, compare, differences
from dutyfree.check.fuzz.differences import Observed, documented
from dutyfree.check.fuzz.draw import Draw, Drawn
from dutyfree.check.fuzz.operators import drawn_operator
from dutyfree.check.fuzz.report import Report
from dutyfree.check.fuzz.source import Case

# Examples that one run of Hypothesis draws. It remembers all of them, so that more would cost memory and time.
BATCH = 200


class Difference(AssertionError):
    """A step went differently on the two sides."""

    def __init__(self, case: Case, compared: Compared) -> None:
        self.case = case
        self.compared = compared
        super().__init__(self.text())

    def text(self) -> str:
        """Where the sides differ."""
        where = "the definition" if self.compared.number < 0 else f"step_{self.compared.number}"
        lines = differences(self.compared.reference, self.compared.ours)
        return "\n".join([f"{where} differs from torch.library.custom_op:", *lines])


@dataclass(frozen=True)
class Failure:
    """A difference after shrinking."""

    case: Case
    text: str
    seed: int
    path: Path | None = None

    def script(self) -> str:
        """The stand-alone script that shows it."""
        return self.case.source(f"Found by `dutyfree check --fuzz --seed {self.seed}`.")


def drawn_case(draw: Draw, sides: tuple[str, ...]) -> Case:
    side = draw(sides)
    operator = drawn_operator(draw)
    return Case(operator, drawn_steps(draw, operator, draw(STEP_COUNTS)), side)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Keep quiet what reports, past Python's warnings, the mistakes that generated cases make on purpose."""
    loggers = [logging.getLogger(name) for name in ("torch._library.custom_ops", "torch._subclasses.fake_tensor")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def warm_up() -> None:
    """Let PyTorch do first what it does once a process: imports with their warnings, caches."""
    x = torch.ones(2)
    torch.nested.nested_tensor([x, torch.ones(3)], layout=torch.jagged)
    importlib.import_module("torch._decomp.decompositions_for_jvp")
    torch.func.jvp(torch.sin, (x,), (x,))
    torch.func.jacfwd(torch.sin)(x)
    with FlopCounterMode(display=False), torch.autograd.profiler.profile(use_kineto=False), enable_python_dispatcher():
        torch.vmap(torch.sin)(x)


def check_case(case: Case, report: Report) -> None:
    """Compare every step of a case.

    Raises:
        Difference: One that is not documented.
    """
    report.operators += 1
    report.definitions.add(hash(case.operator))
    report.labels[f"formula: {case.operator.formula}"] += 1
    with contextlib.closing(compare(*case.load())) as comparing:
        for compared in comparing:
            _count(report, case, compared)
            if not compared.same:
                rule = documented(Observed(case, compared))
                if rule is None:
                    raise Difference(case, compared)
                report.documented[rule] += 1
                return  # one side has made a call that the other has not: PyTorch's caches may differ from here on


def _count(report: Report, case: Case, compared: Compared) -> None:
    report.cases += 1
    report.sides[case.side] += 1
    if compared.number < 0:
        return
    step = case.steps[compared.number]
    report.labels.update(set(step.labels))
    if not isinstance(step, Call):
        return
    report.calls += 1
    report.raised += compared.ours.get("raised") is not None
    for before, after in compared.ways:
        for counter, old, new in zip((report.paths[case.side], report.reasons), before, after, strict=True):
            for name, count in new.items():
                if count > old.get(name, 0):
                    counter[name] += count - old.get(name, 0)


def run_fuzz(
    count: int,
    seed: int = 0,
    *,
    sides: tuple[str, ...] = SIDES,
    seconds: float | None = None,
    save: Path | None = None,
    shrink: bool = True,
    progress: Callable[[Report], None] = lambda report: None,
) -> tuple[Report, Failure | None]:
    """Compare ``count`` cases, or as many as there are seconds for; stops at the first difference.

    Args:
        count: Cases, that is calls and later registrations.
        seed: The same seed draws the same cases, with the same versions of Hypothesis and dutyfree.
        sides: What is compared with custom_op; each case draws one.
        seconds: Start nothing new after this time.
        save: A folder for the script of a difference. What runs is written there as ``running_<process>.py`` before it
            runs, so that a crash of the process leaves its script behind.
        shrink: Make the case of a difference small, which takes up to a minute or two.
        progress: Called now and then.
    """
    report = Report()
    started = time.monotonic()
    until = None if seconds is None else started + seconds
    running = None
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        running = save / f"running_{os.getpid()}.py"
    failure = None
    with unlogged(), _collected_objects_kept_apart() as keep_apart:
        warm_up()
        for batch in itertools.count():
            left = count - report.cases
            if left <= 0 or _is_over(until) or failure is not None:
                break
            failure = _run_batch(report, seed, batch, min(BATCH, -(-left // 8)), sides, running, shrink, until)
            report.seconds = time.monotonic() - started
            keep_apart()
            progress(report)
    if running is not None:
        running.unlink(missing_ok=True)
    if failure is not None and save is not None:
        script = save / f"seed_{seed}_case_{report.cases}.py"
        script.write_text(failure.script())
        failure = replace(failure, path=script)
    return report, failure


@contextlib.contextmanager
def _collected_objects_kept_apart() -> Iterator[Callable[[], None]]:
    """What PyTorch holds on to of the operators that are gone need not be searched again and again."""

    def keep_apart() -> None:
        gc.collect()
        gc.freeze()

    try:
        yield keep_apart
    finally:
        gc.unfreeze()


def _is_over(until: float | None) -> bool:
    return until is not None and time.monotonic() > until


def _run_batch(
    report: Report,
    seed: int,
    batch: int,
    examples: int,
    sides: tuple[str, ...],
    running: Path | None,
    shrink: bool,
    until: float | None,
) -> Failure | None:
    found: list[Difference] = []

    @hypothesis.seed(f"{seed} {batch}")
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        report_multiple_bugs=False,
        print_blob=False,
        # A case is a whole operator with up to 28 calls: large, and slow beside what Hypothesis expects.
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(Drawn(lambda draw: drawn_case(draw, sides)))
    def check(case: Case) -> None:
        if not found and _is_over(until):
            return  # what is drawn after the time is up costs little
        if running is not None:
            running.write_text(case.source())
        try:
            # What is run again to shrink a difference is not counted.
            check_case(case, Report() if found else report)
        except Difference as difference:
            found.append(difference)
            raise

    try:
        check()
    except Difference as difference:
        if not shrink:
            return Failure(difference.case, difference.text(), seed)
        return _without_needless_steps(difference, seed)
    except hypothesis.errors.Flaky:
        if not found:
            raise
        # It did not happen again in the same case, so it depends on what ran before; the first one is all there is.
        return Failure(found[0].case, f"{found[0].text()}\n(not again when the same case was run again)", seed)
    return None


def _without_needless_steps(difference: Difference, seed: int) -> Failure:
    """The difference with all steps dropped that it does not need."""
    number = len(difference.case.steps) - 1
    while number >= 0:
        steps = difference.case.steps
        shorter = replace(difference.case, steps=steps[:number] + steps[number + 1 :])
        try:
            check_case(shorter, Report())
        except Difference as smaller:
            difference = smaller
        number -= 1
    return Failure(difference.case, difference.text(), seed)
