"""Version counters of mutated arguments: what later notices that a saved tensor was changed."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from parity import Arguments, Side, call, check, outcome_of, pair_of


def nothing(x: Tensor) -> None:
    pass


def zeroed(x: Tensor) -> None:
    x.zero_()


def through_numpy(x: Tensor) -> None:
    x.numpy()[:] = 5


def through_a_pointer(x: Tensor) -> None:
    ctypes.memset(x.data_ptr(), 0, x.numel() * x.element_size())


def raising(x: Tensor) -> None:
    raise ValueError("no")


def copied(source: Tensor, x: Tensor, count: int = 1) -> Tensor:
    x.copy_(source)
    return source * count


def many(tensors: list[Tensor]) -> None:
    tensors[0].zero_()


def many_optional(tensors: list[Tensor | None], other: Tensor | None = None) -> None:
    pass


def versions(arguments: Any) -> list[int]:
    return [member["version"] for member in arguments["args"]]


@pytest.mark.parametrize(
    ("body", "version"), [(nothing, 1), (zeroed, 2), (through_numpy, 1), (through_a_pointer, 1), (raising, 1)],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_a_mutated_argument_is_bumped_once_beside_what_the_body_does(body: Callable[..., Any], version: int) -> None:
    outcome = check(pair_of(body, mutates_args={"x"}), lambda: call(torch.ones(2)))
    assert versions(outcome.inputs_after) == [version]


def test_the_bump_comes_before_the_body_runs() -> None:
    seen: list[int] = []

    def body(x: Tensor) -> None:
        seen.append(x._version)

    check(pair_of(body, mutates_args={"x"}), lambda: call(torch.ones(2)))
    assert set(seen) == {1}


def test_only_the_mutated_argument_is_bumped() -> None:
    outcome = check(pair_of(copied, mutates_args={"x"}), lambda: call(torch.ones(2), torch.zeros(2)))
    assert versions(outcome.inputs_after) == [0, 2]
    outcome = check(pair_of(copied, mutates_args={"x"}), lambda: call(torch.ones(2), x=torch.zeros(2), count=3))
    assert outcome.inputs_after["kwargs"][0][1]["version"] == 2


def test_every_call_bumps_once_more() -> None:
    pair = pair_of(nothing, mutates_args={"x"})
    for side in pair.sides():
        x = torch.ones(2)
        for spelling in ("object", "packet", "overload"):
            side.spelled(spelling)(x)
        assert x._version == 3


def test_the_same_tensor_given_twice_is_bumped_twice() -> None:
    def body(x: Tensor, y: Tensor) -> None:
        pass

    def same() -> Arguments:
        x = torch.ones(2)
        return call(x, x)

    check(pair_of(body, mutates_args={"x", "y"}), same)


def test_elements_of_lists_are_bumped() -> None:
    pair = pair_of(many, mutates_args={"tensors"})
    outcome = check(pair, lambda: call([torch.ones(2), torch.ones(2)]))
    assert [member["version"] for member in outcome.inputs_after["args"][0]["members"]] == [2, 1]
    check(pair, lambda: call((torch.ones(2), torch.ones(2))))
    check(pair, lambda: call(tensors=[torch.ones(2)]))


def test_optional_arguments_and_elements_are_bumped_where_given() -> None:
    pair = pair_of(many_optional, mutates_args={"tensors", "other"})
    check(pair, lambda: call([None, torch.ones(2)]))
    check(pair, lambda: call([torch.ones(1), None], None))
    check(pair, lambda: call([torch.ones(1)], torch.ones(2)))
    check(pair, lambda: call([], other=torch.ones(2)))


def test_views_and_bases_share_the_bump() -> None:
    def versions_of_base(side: Side) -> tuple[int, int]:
        base = torch.ones(4)
        view = base[:2]
        side.op(view)
        return base._version, view._version

    pair = pair_of(nothing, mutates_args={"x"})
    assert versions_of_base(pair.reference) == versions_of_base(pair.fast) == (1, 1)


def test_mutates_args_unknown_bumps_every_tensor() -> None:
    def body(x: Tensor, count: int, y: Tensor | None, tensors: list[Tensor]) -> None:
        pass

    pair = pair_of(body, mutates_args="unknown")
    check(pair, lambda: call(torch.ones(2), 3, torch.ones(2), [torch.ones(1)]))
    check(pair, lambda: call(torch.ones(2), 3, None, []))


def test_a_later_backward_through_the_old_value_raises() -> None:
    texts = []
    for side in pair_of(through_a_pointer, mutates_args={"x"}).sides():
        weight = torch.ones(2, requires_grad=True)
        x = torch.ones(2)
        product = (weight * x).sum()
        side.op(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as raised:
            product.backward()
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


def test_mutating_a_leaf_that_requires_grad_is_treated_as_in_pytorch() -> None:
    pair = pair_of(zeroed, mutates_args={"x"})
    check(pair, lambda: call(torch.ones(2, requires_grad=True)), reason="requires-grad")
    check(pair, lambda: call(torch.ones(2, requires_grad=True) * 2), reason="requires-grad")
    with torch.no_grad():
        outcome = check(pair, lambda: call(torch.ones(2, requires_grad=True)))
    assert versions(outcome.inputs_after) == [2]


def test_a_mutating_operator_beside_an_input_that_requires_grad_is_treated_as_in_pytorch() -> None:
    pair = pair_of(copied, mutates_args={"x"})
    check(pair, lambda: call(torch.ones(2, requires_grad=True), torch.ones(2)), reason="requires-grad")


def test_mutating_an_inference_tensor_outside_inference_mode_raises() -> None:
    with torch.inference_mode():
        inference = torch.ones(2)
    for body in (nothing, zeroed, through_a_pointer):
        outcome = check(pair_of(body, mutates_args={"x"}), lambda: call(inference), reason="inference-mutation")
        if body is zeroed:
            assert outcome.raised is not None
    pair = pair_of(many, mutates_args={"tensors"})
    check(pair, lambda: call([torch.ones(2), inference]), reason="inference-mutation")


def test_mutating_an_inference_tensor_beside_an_ordinary_one_raises() -> None:
    with torch.inference_mode():
        inference = torch.ones(2)
    pair = pair_of(copied, mutates_args={"x"})
    outcome = check(pair, lambda: call(torch.ones(2), inference), reason="inference-mutation")
    assert outcome.raised is not None
    assert "inference tensor" in outcome.raised[1].lower()
    check(pair, lambda: call(inference, torch.ones(2)))


@pytest.mark.parametrize("beside", ["plain", "inference"])
def test_the_version_of_a_detached_inference_tensor_is_left_alone(beside: str) -> None:
    def seen(x: Tensor, y: Tensor) -> Tensor:
        version = y._version
        y.add_(1)
        return x.new_full((1,), version)

    def given() -> Any:
        with torch.inference_mode():
            inference = torch.ones(2)
        assert inference.detach().is_inference()
        return call(torch.ones(2) if beside == "plain" else inference, inference.detach())

    outcome = check(pair_of(seen, mutates_args={"y"}), given)
    assert outcome.raised is None


def test_mutating_in_inference_mode_works() -> None:
    pair = pair_of(zeroed, mutates_args={"x"})
    ordinary = [torch.ones(2) for _ in range(6)]
    with torch.inference_mode():
        check(pair, lambda: call(torch.ones(2)))
        outcome = check(pair, lambda: call(ordinary.pop()))
    assert outcome.value == ("NoneType", "None")


def test_a_pure_operator_bumps_nothing() -> None:
    def body(x: Tensor) -> Tensor:
        return x + 1

    outcome = check(pair_of(body), lambda: call(torch.ones(2)))
    assert versions(outcome.inputs_after) == [0]


def test_a_refused_call_bumps_nothing() -> None:
    def body(x: Tensor, count: int) -> None:
        pass

    outcome = check(pair_of(body, mutates_args={"x"}), lambda: call(torch.ones(2), "bad"), reason="argument-type")
    assert outcome.inputs_after["args"][0]["version"] == 0


def test_a_version_counter_wraps_no_earlier_than_in_pytorch() -> None:
    pair = pair_of(nothing, mutates_args={"x"})
    for side in pair.sides():
        x = torch.ones(2)
        torch._C._autograd._unsafe_set_version_counter((x,), (2**31 - 2,))
        assert outcome_of(side, "object", call(x)).raised is None
        assert x._version == 2**31 - 1


def test_a_mutated_tensor_without_a_version_counter_raises_as_in_pytorch() -> None:
    """Its keys are an ordinary tensor's: `.data` of one was assigned to an inference tensor."""

    def nothing(x: Tensor) -> None:
        pass

    def argument() -> Tensor:
        with torch.inference_mode():
            result = torch.ones(2)
        result.data = torch.ones(2)
        return result

    pair = pair_of(nothing, record=False, mutates_args=("x",))
    texts = []
    for side in pair.sides():
        with pytest.raises(RuntimeError) as error:
            side.op(argument())
        texts.append(str(error.value))
    assert texts[0] == texts[1]
    assert dutyfree.explain(pair.fast.op, argument()).code == "inference-mutation"
