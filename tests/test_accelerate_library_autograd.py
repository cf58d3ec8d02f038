"""Accelerated operators of Library.define and Library.impl: the keys of their kernels, and the autograd around them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from accelerated import (
    AUTOGRAD,
    BELOW_AUTOGRAD,
    BOXED_FOR_GRADIENT,
    DIRECT,
    KEYS,
    both,
    check,
    doubled,
    library_twins,
    ones,
    ones_with_grad,
    restored,
    took,
)
from dutyfree.check.outcome import Side, call

__all__ = ["restored"]  # a fixture for every test here


@pytest.mark.parametrize("key", KEYS)
def test_a_body_under_any_key_runs_directly(key: str) -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, key)
    assert dutyfree.accelerate(twins.accelerated.qualname)[twins.accelerated.qualname].path == "direct"
    assert check(twins, ones).value["values"] == "[2.0, 2.0]"
    assert check(twins, lambda: call(x=torch.ones(2))).value["values"] == "[2.0, 2.0]"


@pytest.mark.parametrize("key", KEYS)
def test_without_grad_mode_an_input_that_requires_grad_does_not_matter(key: str) -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, key)
    with torch.no_grad():
        assert check(twins, ones_with_grad).value["requires grad"] is False
    with torch.inference_mode():
        assert check(twins, ones).value["inference"] is True
        x = torch.ones(2)
    check(twins, lambda: call(x))


@pytest.mark.parametrize("key", BELOW_AUTOGRAD)
def test_an_input_that_requires_grad_meets_pytorchs_fallback(key: str) -> None:
    def cut(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() * 2)

    for body in (doubled, cut):
        twins = library_twins("(Tensor x) -> Tensor", body, key)
        check(twins, ones_with_grad, BOXED_FOR_GRADIENT)


@pytest.mark.parametrize("key", ["CompositeImplicitAutograd", "", "Autograd", "AutogradCPU"])
def test_a_body_at_the_autograd_key_records_its_own_gradient(key: str) -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, key)
    outcome = check(twins, ones_with_grad)
    assert outcome.value["grad_fn"] == ("MulBackward0", ["AccumulateGrad", None])


@pytest.fixture
def fallback_mode() -> Iterator[Callable[[str], None]]:
    before = torch._C._get_autograd_fallback_mode()
    yield torch._C._set_autograd_fallback_mode
    torch._C._set_autograd_fallback_mode(before)


@pytest.mark.parametrize("mode", ["nothing", "warn"])
@pytest.mark.parametrize("key", BELOW_AUTOGRAD)
def test_the_modes_of_the_autograd_fallback(fallback_mode: Callable[[str], None], mode: str, key: str) -> None:
    def cut(x: Tensor) -> Tensor:
        return torch.full((2,), 3.0)

    fallback_mode(mode)
    twins = library_twins("(Tensor x) -> Tensor", cut, key)

    def gradient(side: Side) -> Any:
        x = torch.ones(2, requires_grad=True)
        y = side.overload(x)
        described = (y.requires_grad, side.text(type(y.grad_fn).__name__))
        with pytest.warns() if mode == "warn" else _no_warning() as caught:
            (y * x).sum().backward()
        warnings = [side.text(warning.message) for warning in caught or ()]
        return described, None if x.grad is None else x.grad.tolist(), warnings

    check(twins, ones_with_grad, DIRECT if mode == "nothing" else BOXED_FOR_GRADIENT)
    both(twins, gradient)


def test_the_mode_of_the_autograd_fallback_is_that_of_the_call(fallback_mode: Callable[[str], None]) -> None:
    twins = library_twins("(Tensor x) -> Tensor", lambda x: torch.full((2,), 3.0))
    # PyTorch 2.13 has the third mode, "error", by name only: to set it raises.
    for mode in ("warn", "nothing", "warn", "nothing"):
        fallback_mode(mode)
        outcome = check(twins, ones_with_grad, DIRECT if mode == "nothing" else BOXED_FOR_GRADIENT)
        assert outcome.value["requires grad"] is (mode == "warn")
        check(twins, ones)


class _no_warning:
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...


def test_the_autograd_of_a_body_is_not_masked() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))

    def captures(x: Tensor) -> Tensor:
        return x * parameter

    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", captures, key)
        outcome = check(twins, ones)
        assert outcome.value["grad_fn"] == ("MulBackward0", [None, "AccumulateGrad"])

    def differentiates(x: Tensor) -> Tensor:
        y = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((y**3).sum(), y)
        return gradient

    twins = library_twins("(Tensor x) -> Tensor", differentiates)
    assert check(twins, ones).value["values"] == "[3.0, 3.0]"


def test_gradients_through_a_body_that_torch_can_differentiate() -> None:
    for key in KEYS:
        twins = library_twins("(Tensor x) -> Tensor", doubled, key)

        def gradients(side: Side) -> Any:
            x = torch.full((2,), 3.0, requires_grad=True)
            (first,) = torch.autograd.grad((side.overload(x) ** 3).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            return first.tolist(), second.tolist()

        assert both(twins, gradients)[0] == [216.0, 216.0]


def test_register_autograd_on_a_library_operator() -> None:
    twins = library_twins("(Tensor x, float scale=1.0, *, bool flip=False) -> Tensor", lambda x, s=1.0, **_: x * s)
    check(twins, lambda: call(torch.ones(2), 3), DIRECT)
    seen: list[Any] = []

    def setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        seen.append((len(inputs), inputs[1:], keyword_only_inputs, ctx.needs_input_grad))
        ctx.save_for_backward(output)
        ctx.scale = inputs[1]

    def backward(ctx: Any, gradient: Tensor) -> Any:
        (output,) = ctx.saved_tensors
        return gradient * ctx.scale + output, None

    twins.each(lambda side: torch.library.register_autograd(side.qualname, backward, setup_context=setup_context))
    check(twins, ones, DIRECT)
    check(twins, lambda: call(torch.ones(2, requires_grad=True), 3, flip=True), AUTOGRAD)

    def gradient(side: Side) -> Any:
        seen.clear()
        x = torch.ones(2, requires_grad=True)
        y = side.packet(x, 3.0)
        y.backward(torch.ones(2))
        assert x.grad is not None
        return x.grad.tolist(), side.text(type(y.grad_fn).__name__), list(seen)

    with took(twins.accelerated, AUTOGRAD):
        both(twins, gradient)


def test_returned_inputs_are_the_very_objects() -> None:
    twins = library_twins("(Tensor x, Tensor y) -> (Tensor, Tensor, Tensor[])", lambda x, y: (y, x, [x, x]))
    outcome = check(twins, lambda: call(torch.ones(2), torch.zeros(2)))
    assert [member.get("is input") for member in outcome.value["members"]] == [1, 0, None]
    x, y = torch.ones(2), torch.ones(2)
    for spelled in (twins.accelerated.packet, twins.accelerated.overload):
        first, second, several = spelled(x, y)
        assert first is y
        assert second is x
        assert several[0] is x


def test_a_view_of_an_input_is_returned() -> None:
    twins = library_twins("(Tensor x) -> Tensor", lambda x: x[1:])
    assert check(twins, ones).value["view"] is True
    twins = library_twins("(Tensor(a) x) -> Tensor(a)", lambda x: x.view(-1))
    check(twins, ones, ("boxed", "schema"))
    check(twins, ones_with_grad, None)


def test_no_version_bump_but_the_bodys_own() -> None:
    def in_place(x: Tensor) -> None:
        x.add_(1)

    def unseen(x: Tensor) -> None:
        x.numpy()[:] = 5

    for body, version in ((in_place, 1), (unseen, 0)):
        twins = library_twins("(Tensor(a!) x) -> ()", body)
        outcome = check(twins, ones)
        assert outcome.inputs_after["args"][0]["version"] == version
        assert outcome.value == ("NoneType", "None")


def test_an_in_place_and_an_out_operator() -> None:
    twins = library_twins("(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: x.add_(y))
    outcome = check(twins, lambda: call(torch.ones(2), torch.ones(2)))
    assert outcome.value["is input"] == 0
    check(twins, lambda: call(torch.ones(2), torch.ones(2, requires_grad=True)), BOXED_FOR_GRADIENT)

    def out_of_place(x: Tensor, *, out: Tensor) -> Tensor:
        return out.copy_(x)

    twins = library_twins("(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", out_of_place)
    outcome = check(twins, lambda: call(torch.ones(2), out=torch.zeros(2)))
    assert outcome.value["is input"] == 1
    check(twins, lambda: call(torch.ones(2, requires_grad=True), out=torch.zeros(2)), None)
    check(twins, lambda: call(torch.ones(2)), None)
