"""The differential fuzzer: it passes, it covers what it says it covers, and it finds faults."""

import gc
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import dutyfree
from dutyfree.check.fuzz import calls, schema_types, states, transforms
from dutyfree.check.fuzz.bodies import Body
from dutyfree.check.fuzz.calls import Call, Later
from dutyfree.check.fuzz.compare import SIDES, accelerated_custom_op, compare
from dutyfree.check.fuzz.differences import RULES, Observed, documented
from dutyfree.check.fuzz.operators import Operator
from dutyfree.check.fuzz.report import Report
from dutyfree.check.fuzz.run import Difference, check_case, run_fuzz
from dutyfree.check.fuzz.schema_types import Parameter
from dutyfree.check.fuzz.source import Case
from dutyfree.cli import app
from faulty_operators import (
    Faulty,
    autocast_rules_are_ignored,
    dispatch_modes_are_ignored,
    later_kernels_are_ignored,
    version_is_not_bumped,
)

ONE_TENSOR = Operator((Parameter("x", "Tensor"),), ("Tensor",), Body(values=("first.clone()",)))


@pytest.fixture(scope="module")
def report() -> Report:
    report, failure = run_fuzz(3000, seed=3)
    assert failure is None, f"{failure.text}\n\n{failure.script()}"
    return report


def test_a_short_run_finds_no_difference(report: Report) -> None:
    assert report.cases >= 3000
    assert len(report.definitions) > 100
    assert report.raised < 0.6 * report.calls, "most calls should do something"


def test_a_good_part_of_the_calls_takes_each_of_dutyfrees_own_paths(report: Report) -> None:
    for side in SIDES:
        assert report.share(side, "direct") >= 0.25
        # Few of the generated tensors require gradients, and some of the states leave those to PyTorch.
        assert report.share(side, "autograd") >= 0.03
    assert report.share("accelerated", "boxed") >= 0.15
    assert report.share("fast", "boxed") == 0


def test_each_side_is_compared_in_about_half_of_the_cases(report: Report) -> None:
    assert report.sides.total() == report.cases
    assert min(report.sides[side] for side in SIDES) >= 0.3 * report.cases


@pytest.mark.parametrize("side", SIDES)
def test_one_side_alone_can_be_compared(side: str) -> None:
    report, failure = run_fuzz(50, seed=1, sides=(side,))
    assert failure is None
    assert dict(report.sides) == {side: report.cases}
    assert list(report.paths) == [side]


def test_every_kind_of_argument_and_every_state_occurs(report: Report) -> None:
    expected = {
        "tensor": set(calls.TENSORS),
        "type": set(schema_types.KINDS),
        "state": {*states.STATES, "none", "another thread"},
        "transform": set(transforms.TRANSFORMS),
        "mood": set(calls.MOODS),
        "spelling": {"object", "packet", "overload"},
        "backward": set(calls.BACKWARD),
        "wrong": {"too many", "missing", "unknown keyword", "repeated", "wrong type"},
    }
    missing = {name: kinds - set(report.group(name)) for name, kinds in expected.items()}
    assert not any(missing.values()), missing


def test_every_reason_for_leaving_the_direct_path_occurs(report: Report) -> None:
    from dutyfree.explain import _SENTENCES

    # An operator that is switched off, or an `apply` that someone replaced in the whole process, is none of the
    # fuzzer's; nor does it make results of nested tuples, whose gradients PyTorch records itself. Those of boxed
    # calls are of operators that others registered.
    boxed = {"cpp-kernel", "redefined", "torch-function-argument", "argument-mismatch"}
    optional = {"", "disabled", "patched-apply", "gradient-form", *boxed}
    assert set(_SENTENCES) - optional <= set(report.reasons)


@pytest.mark.parametrize("fault", [dispatch_modes_are_ignored, autocast_rules_are_ignored, later_kernels_are_ignored])
def test_a_fault_is_found(fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dutyfree, "fast_custom_op", fault)
    _, failure = run_fuzz(2000, seed=0, sides=("fast",), shrink=False)
    assert failure is not None


def test_a_fault_of_accelerated_operators_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    around = dispatch_modes_are_ignored.__wrapped__  # type: ignore[attr-defined]
    faulty = lambda name, body, **options: Faulty(accelerated_custom_op(name, body, **options), around)  # noqa: E731
    monkeypatch.setattr("dutyfree.check.fuzz.compare.accelerated_custom_op", faulty)
    _, failure = run_fuzz(2000, seed=0, save=tmp_path, shrink=False)
    assert failure is not None
    assert failure.path is not None
    assert failure.case.side == "accelerated"
    assert run_script(failure.path) == (0, "No difference.\n")


def test_a_difference_is_shrunk_and_its_script_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dutyfree, "fast_custom_op", version_is_not_bumped)
    _, failure = run_fuzz(500, seed=0, sides=("fast",), save=tmp_path)
    assert failure is not None
    assert failure.path is not None
    assert list(tmp_path.iterdir()) == [failure.path]
    assert len(failure.case.steps) == 1
    assert "['version']" in failure.text
    assert run_script(failure.path) == (0, "No difference.\n")
    status, output = run_script(failure.path, fault="version_is_not_bumped")
    assert status == 1
    assert failure.text.splitlines()[1] in output


def run_script(path: Path, fault: str = "") -> tuple[int, str]:
    """A saved script's exit status and output, in a process of its own; there, ``fault`` is put in too."""
    source = f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
    if fault:
        source = f"import dutyfree, faulty_operators; dutyfree.fast_custom_op = faulty_operators.{fault}; {source}"
    finished = subprocess.run(
        [sys.executable, "-c", source], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return finished.returncode, finished.stdout + finished.stderr


def test_the_same_seed_makes_the_same_cases() -> None:
    first, second, other = (run_fuzz(150, seed)[0] for seed in (5, 5, 6))
    assert first.labels == second.labels
    assert first.labels != other.labels


def test_what_is_no_difference_of_a_documented_kind_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dutyfree, "fast_custom_op", version_is_not_bumped)
    mutating = Operator(
        (Parameter("x", "Tensor", mutated=True, alias="a0!"),), (), Body(effect="MUTATE"), mutates_args="{'x'}"
    )
    with pytest.raises(Difference, match="version"):
        check_case(Case(mutating, (Call("object", ("torch.ones(2)",), ("t0",)),)), Report())


def test_a_documented_difference_is_counted_under_its_rule() -> None:
    operator = Operator((Parameter("self", "Tensor"),), ("Tensor",), Body(values=("first.clone()",)))
    report = Report()
    check_case(Case(operator, (Call("object", ("torch.ones(2)",), (), (("self", "t0"),)),)), report)
    assert report.documented == {"argument_named_self": 1}


@pytest.mark.parametrize("transform", transforms.BY_AUTOGRAD)
def test_a_transform_that_the_reference_refuses_must_give_the_right_gradient(transform: str) -> None:
    operator = replace(ONE_TENSOR, body=Body(values=("first * 2",)), formula="good")
    case = Case(operator, (Call("object", ("torch.arange(3.0)",), ("t0",), transform=transform),))
    *_, compared = compare(*case.load())
    assert documented(Observed(case, compared)) == "differentiating_transform_with_a_formula"
    *_, other = compare(*replace(case, steps=(replace(case.steps[0], tensors=("torch.ones(3)",)),)).load())
    compared.ours["value"] = other.ours["value"]
    assert documented(Observed(case, compared)) is None


def test_a_transform_that_dutyfree_refuses_too_is_no_documented_difference() -> None:
    case = Case(replace(ONE_TENSOR, formula="good"), (Call("object", ("torch.ones(2)",), ("t0",), transform="grad"),))
    *_, compared = compare(*case.load())
    compared.ours["raised"] = compared.reference["raised"]
    assert documented(Observed(case, compared)) is None


def test_the_thread_state_that_the_reference_leaves_changed() -> None:
    operator = Operator((Parameter("x", "Tensor"),), ("Scalar",), Body(values=("Wrapper(torch.ones(2))",)))
    report = Report()
    check_case(Case(operator, (Call("object", ("torch.ones(2)",), ("t0",)),)), report)
    assert report.documented == {"thread_state_after_an_error": 1}


def test_every_rule_points_to_a_line_of_differences_md() -> None:
    page = (Path(__file__).parents[1] / "docs" / "differences.md").read_text()
    for rule in RULES:
        assert rule.__doc__ is not None
        assert rule.__doc__.partition(":")[0] in page, rule.__name__


@pytest.mark.parametrize("what", calls.LATER)
@pytest.mark.parametrize("side", SIDES)
def test_every_later_registration_can_be_made_between_two_calls(what: str, side: str) -> None:
    call = Call("object", ("torch.ones(2)",), ("t0",))
    check_case(Case(ONE_TENSOR, (call, Later(what), call), side), Report())


def test_what_only_fast_custom_op_does_better_is_a_difference_of_an_accelerated_operator() -> None:
    operator = Operator((Parameter("self", "Tensor"),), ("Tensor",), Body(values=("first.clone()",)))
    case = Case(operator, (Call("object", ("torch.ones(2)",), (), (("self", "t0"),)),))
    *_, compared = compare(*case.load())
    assert documented(Observed(case, compared)) == "argument_named_self"
    assert documented(Observed(replace(case, side="accelerated"), compared)) is None


def test_a_run_leaves_the_process_as_it_was() -> None:
    logger = logging.getLogger("torch._library.custom_ops")
    gc.unfreeze()
    before = logger.disabled, torch.library.Library.impl, gc.get_freeze_count()

    def stop(report: Report) -> None:
        raise KeyboardInterrupt

    run_fuzz(50, seed=1)
    with pytest.raises(KeyboardInterrupt):
        run_fuzz(50, seed=1, progress=stop)
    assert (logger.disabled, torch.library.Library.impl, gc.get_freeze_count()) == before


def test_a_run_ends_soon_after_its_time() -> None:
    report, failure = run_fuzz(1_000_000, seed=1, seconds=0.5)
    assert failure is None
    assert 0 < report.cases < 10_000
    assert report.seconds < 10


def test_operators_are_gone_when_a_case_is_over() -> None:
    before = set(vars(torch.ops))
    for side in SIDES:
        check_case(Case(ONE_TENSOR, (Call("packet", ("torch.ones(2)",), ("t0",)),), side), Report())
        assert set(vars(torch.ops)) == before
        assert not [name for name in dutyfree.stats() if name.startswith("fuzz_our_")]


def test_the_command_reports_and_keeps_nothing(tmp_path: Path) -> None:
    arguments = ["check", "--fuzz", "--cases", "100", "--seed", "2", "--save", str(tmp_path)]
    finished = subprocess.run(
        [sys.executable, "-c", "from dutyfree.cli import app; app()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "cases compared" in finished.stdout
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_can_be_checked() -> None:
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 2
    assert "--fuzz" in result.output
