"""explain, stats and reset_stats."""

from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from isolated import run_isolated
from parity import SPELLINGS, Pair, call, pair_of, unique_namespaces

REASONS = {
    "", "disabled", "schema", "torch-function-mode", "dispatch-mode", "thread-state", "argument-count",
    "argument-name", "argument-type", "tensor-subclass", "tensor-key", "requires-grad", "out-gradient",
    "gradient-form", "patched-apply", "kernel", "inference-mutation",
}  # fmt: skip


def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


def zeroed(x: Tensor) -> None:
    x.zero_()


@pytest.fixture
def pair() -> Pair:
    return pair_of(scaled)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_explain_takes_every_spelling_and_does_not_run_the_body(pair: Pair, spelling: str) -> None:
    plan = dutyfree.explain(pair.fast.spelled(spelling), torch.ones(2), factor=3.0)
    assert (plan.operator, plan.path, plan.code) == (pair.fast.qualname, "direct", "")
    assert not pair.fast.received


def test_a_plan_prints_as_one_line_with_the_operator_the_path_and_the_reason(pair: Pair) -> None:
    direct = str(dutyfree.explain(pair.fast.op, torch.ones(2)))
    left = dutyfree.explain(pair.fast.op, torch.ones(2, requires_grad=True))
    for text, words in (
        (direct, [pair.fast.qualname, "direct"]),
        (str(left), [pair.fast.qualname, left.path, left.reason]),
    ):
        assert "\n" not in text
        assert [word for word in words if word not in text] == []


def test_the_reason_names_the_argument_and_its_type(pair: Pair) -> None:
    class Sub(Tensor):
        pass

    plan = dutyfree.explain(pair.fast.op, torch.ones(2).as_subclass(Sub))
    assert "x" in plan.reason
    assert "Sub" in plan.reason
    assert "factor" in dutyfree.explain(pair.fast.op, torch.ones(2), object()).reason
    assert "Negative" in dutyfree.explain(pair.fast.op, torch.ones(2, dtype=torch.cfloat).conj().imag).reason


def test_explain_has_no_effect_on_versions_counters_or_state() -> None:
    pair = pair_of(zeroed, mutates_args={"x"})
    x = torch.ones(2)
    before = dutyfree.stats()[pair.fast.qualname]
    for _ in range(10):
        dutyfree.explain(pair.fast.op, x)
    assert x._version == 0
    assert x.tolist() == [1.0, 1.0]
    assert dutyfree.stats()[pair.fast.qualname] == before


def test_explain_of_bad_arguments_tells_the_reason_and_does_not_raise(pair: Pair) -> None:
    for arguments, code in (
        (call(), "argument-count"),
        (call(torch.ones(2), 2.0, 3), "argument-count"),
        (call(torch.ones(2), nonsense=1), "argument-name"),
        (call(torch.ones(2), 2.0, factor=1.0), "argument-name"),
        (call("text"), "argument-type"),
    ):
        plan = dutyfree.explain(pair.fast.op, *arguments.args, **arguments.kwargs)
        assert (plan.path, plan.code) == ("pytorch", code)


def test_explain_of_an_operator_that_is_not_ours_says_so() -> None:
    plan = dutyfree.explain(torch.ops.aten.relu.default, torch.ones(2))
    assert (plan.path, plan.code) == ("pytorch", "disabled")
    assert dutyfree.explain(torch.ops.aten.relu, torch.ones(2)).path == "pytorch"


@pytest.mark.parametrize("value", [None, 3, len, scaled, "aten::relu"], ids=repr)
def test_explain_of_what_is_no_operator_raises_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="operator"):
        dutyfree.explain(value, torch.ones(2))


def test_stats_counts_calls_by_path_and_reasons(pair: Pair) -> None:
    for _ in range(3):
        pair.fast.op(torch.ones(2))
    pair.fast.packet(torch.ones(2))
    pair.fast.overload(torch.ones(2))
    pair.fast.op(torch.ones(2, requires_grad=True))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            pair.fast.op("text")
    stats = dutyfree.stats()[pair.fast.qualname]
    assert stats.calls["direct"] == 5
    assert sum(stats.calls.values()) == 8
    assert stats.reasons["argument-type"] == 2
    assert set(stats.calls) <= {"direct", "autograd", "boxed", "pytorch"}
    assert set(stats.reasons) <= REASONS


def test_a_call_whose_body_raises_is_counted(pair: Pair) -> None:
    def body(x: Tensor) -> Tensor:
        raise ValueError("no")

    other = pair_of(body)
    with pytest.raises(ValueError, match="no"):
        other.fast.op(torch.ones(2))
    assert dutyfree.stats()[other.fast.qualname].calls["direct"] == 1


def test_reset_stats_sets_every_count_to_zero(pair: Pair) -> None:
    pair.fast.op(torch.ones(2))
    pair.fast.op(torch.ones(2, requires_grad=True))
    dutyfree.reset_stats()
    stats = dutyfree.stats()[pair.fast.qualname]
    assert sum(stats.calls.values()) == 0
    assert sum(stats.reasons.values()) == 0
    pair.fast.op(torch.ones(2))
    assert dutyfree.stats()[pair.fast.qualname].calls["direct"] == 1


def test_what_stats_returned_does_not_change_later(pair: Pair) -> None:
    pair.fast.op(torch.ones(2))
    stats = dutyfree.stats()
    pair.fast.op(torch.ones(2))
    assert stats[pair.fast.qualname].calls["direct"] == 1


def call_with_dutyfree_off() -> None:
    namespace = unique_namespaces()[1]
    op = dutyfree.fast_custom_op(f"{namespace}::op", scaled)
    for spelled in (op, getattr(torch.ops, namespace).op, getattr(torch.ops, namespace).op.default):
        assert spelled(torch.ones(2)).tolist() == [2.0, 2.0]
        plan = dutyfree.explain(spelled, torch.ones(2))
        assert (plan.path, plan.code) == ("pytorch", "disabled")
    stats = dutyfree.stats().get(op._qualname)
    assert stats is None or stats.calls.get("direct", 0) == 0


def test_dutyfree_off_takes_pytorchs_path_always() -> None:
    run_isolated(call_with_dutyfree_off, DUTYFREE="off")
