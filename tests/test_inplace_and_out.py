"""Operators tagged Tag.inplace and Tag.out, and operators whose schema returns a view or an alias."""

from typing import Any

import pytest
import torch
from torch import Tensor

from parity import call, check, pair_of, refused_alike

IN_PLACE = {"mutates_args": {"x"}, "tags": torch.Tag.inplace}
OUT = {"mutates_args": {"out"}, "tags": torch.Tag.out}


def add_(x: Tensor, y: Tensor) -> Tensor:
    return x.add_(y)


def add_out(x: Tensor, *, out: Tensor) -> Tensor:
    return out.copy_(x + 1)


def test_an_inplace_operator_returns_its_first_argument() -> None:
    pair = pair_of(add_, **IN_PLACE)
    outcome = check(pair, lambda: call(torch.ones(2), torch.ones(2)))
    assert outcome.value["is input"] == 0
    check(pair, lambda: call(x=torch.ones(2), y=torch.ones(1)))
    for side in pair.sides():
        x = torch.ones(2)
        assert side.op(x, torch.ones(2)) is x


def test_an_inplace_operator_that_returns_something_else_is_refused() -> None:
    def clones(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(y).clone()

    def views(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(y).view(-1)

    def other(x: Tensor, y: Tensor) -> Tensor:
        return y

    def nothing(x: Tensor, y: Tensor) -> Tensor:
        return None  # type: ignore[return-value]

    def in_a_tuple(x: Tensor, y: Tensor) -> Tensor:
        return (x,)  # type: ignore[return-value]

    for body in (clones, views, other, nothing, in_a_tuple):
        outcome = check(pair_of(body, **IN_PLACE), lambda: call(torch.ones(2), torch.ones(2)))
        assert outcome.raised is not None
        assert "torch.Tag.inplace" in outcome.raised[1]


def test_an_inplace_operator_bumps_the_version() -> None:
    def untouched(x: Tensor, y: Tensor) -> Tensor:
        return x

    outcome = check(pair_of(untouched, **IN_PLACE), lambda: call(torch.ones(2), torch.ones(2)))
    assert outcome.inputs_after["args"][0]["version"] == 1


def test_an_inplace_operator_on_a_tensor_that_requires_grad_acts_as_in_pytorch() -> None:
    def arguments() -> Any:
        return call(torch.ones(2, requires_grad=True) * 2, torch.ones(2))

    check(pair_of(add_, **IN_PLACE), arguments, reason="requires-grad")
    check(
        pair_of(add_, **IN_PLACE),
        lambda: call(torch.ones(2, requires_grad=True), torch.ones(2)),
        reason="requires-grad",
    )
    with torch.no_grad():
        check(pair_of(add_, **IN_PLACE), arguments)


def test_an_out_operator_returns_its_out_argument() -> None:
    pair = pair_of(add_out, **OUT)
    outcome = check(pair, lambda: call(torch.ones(2), out=torch.zeros(2)))
    assert outcome.value["is input"] == 1
    assert outcome.inputs_after["kwargs"][0][1]["version"] > 0


def test_an_out_operator_that_returns_something_else_is_refused() -> None:
    def clones(x: Tensor, *, out: Tensor) -> Tensor:
        return out.clone()

    def nothing(x: Tensor, *, out: Tensor) -> Tensor:
        return None  # type: ignore[return-value]

    def in_a_tuple(x: Tensor, *, out: Tensor) -> Tensor:
        return (out,)  # type: ignore[return-value]

    for body in (clones, nothing, in_a_tuple):
        outcome = check(pair_of(body, **OUT), lambda: call(torch.ones(2), out=torch.ones(2)))
        assert outcome.raised is not None
        assert "torch.Tag.out" in outcome.raised[1]


def test_an_out_operator_with_two_outputs_returns_both_in_order() -> None:
    def both(x: Tensor, *, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return first.copy_(x), second.copy_(x)

    def swapped(x: Tensor, *, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return second, first

    def listed(x: Tensor, *, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return [first, second]  # type: ignore[return-value]

    options = {"mutates_args": {"first", "second"}, "tags": torch.Tag.out}
    for body in (both, swapped, listed):
        pair = pair_of(body, **options)
        check(pair, lambda: call(torch.ones(2), first=torch.zeros(2), second=torch.zeros(2)))
        check(pair, lambda: call(torch.ones(2), second=torch.zeros(2), first=torch.zeros(2)))


def test_an_out_operator_refuses_arguments_that_require_grad() -> None:
    outcome = check(
        pair_of(add_out, **OUT),
        lambda: call(torch.ones(2, requires_grad=True), out=torch.zeros(2)),
        reason="out-gradient",
    )
    assert outcome.raised is not None
    assert "don't support automatic differentiation" in outcome.raised[1]
    outcome = check(
        pair_of(add_out, **OUT),
        lambda: call(torch.ones(2), out=torch.zeros(2, requires_grad=True)),
        reason="out-gradient",
    )
    assert outcome.raised is not None
    with torch.no_grad():
        check(pair_of(add_out, **OUT), lambda: call(torch.ones(2, requires_grad=True), out=torch.zeros(2)))


def test_a_view_operator_is_left_to_pytorch() -> None:
    def view(x):  # type: ignore[no-untyped-def]
        return x.view(-1)

    pair = pair_of(view, schema="(Tensor(a) x) -> Tensor(a)")
    check(pair, lambda: call(torch.ones(2)), reason="schema")


def test_a_mutated_and_returned_argument_without_a_tag_is_checked_as_in_pytorch() -> None:
    def same(x):  # type: ignore[no-untyped-def]
        return x.add_(1)

    def fresh(x):  # type: ignore[no-untyped-def]
        return x.add_(1).clone()

    for body in (same, fresh):
        pair = pair_of(body, schema="(Tensor(a!) x) -> Tensor(a!)", mutates_args={"x"})
        check(pair, lambda: call(torch.ones(2)))


def test_a_keyword_only_out_argument_without_the_tag_is_refused_as_in_pytorch() -> None:
    kind, text = refused_alike(add_out, mutates_args={"out"})
    assert kind == "NotImplementedError"
    assert "kwarg-only Tensor" in text


def test_signatures_that_do_not_fit_the_tag_are_refused_as_in_pytorch() -> None:
    def returns_nothing(x: Tensor) -> None: ...

    def takes_no_tensor(count: int) -> Tensor: ...  # type: ignore[empty-body]

    def positional_out(x: Tensor, out: Tensor) -> Tensor: ...  # type: ignore[empty-body]

    refused_alike(returns_nothing, **IN_PLACE)
    refused_alike(takes_no_tensor, mutates_args=(), tags=torch.Tag.inplace)
    refused_alike(add_, mutates_args={"y"}, tags=torch.Tag.inplace)
    refused_alike(add_, mutates_args="unknown", tags=torch.Tag.inplace)
    refused_alike(positional_out, **OUT)
    refused_alike(add_out, mutates_args=(), tags=torch.Tag.out)
    refused_alike(add_out, mutates_args={"out"}, tags=[torch.Tag.out, torch.Tag.inplace])


def test_a_fake_for_an_inplace_operator_warns_as_in_pytorch() -> None:
    pair = pair_of(add_, **IN_PLACE)
    for side in pair.sides():
        with pytest.warns(UserWarning, match="already get an autogenerated fake kernel"):
            side.op.register_fake(lambda x, y: x)


def test_autograd_for_inplace_and_out_operators_is_refused_as_in_pytorch() -> None:
    for pair in (pair_of(add_, **IN_PLACE), pair_of(add_out, **OUT)):
        texts = []
        for side in pair.sides():
            with pytest.raises(RuntimeError) as raised:
                side.op.register_autograd(lambda ctx, grad: grad)
            texts.append(side.text(raised.value))
        assert texts[0] == texts[1]
