"""Accelerated operators of torch.library.custom_op: the gradients of their formulas."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from accelerated import (
    AUTOGRAD,
    DIRECT,
    Formula,
    Twins,
    both,
    check,
    custom_twins,
    doubled,
    ones,
    product,
    restored,
)
from dutyfree.check.outcome import Arguments, Side, call

__all__ = ["product", "restored"]  # fixtures, the last for every test here


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True), (False, False)])
def test_gradients_of_a_formula(product: tuple[Twins, Formula], needs: tuple[bool, bool]) -> None:
    twins, formula = product

    def arguments() -> Arguments:
        return call(torch.full((2,), 3.0, requires_grad=needs[0]), torch.full((2,), 5.0, requires_grad=needs[1]))

    check(twins, arguments, AUTOGRAD if any(needs) else DIRECT)

    def gradients(side: Side) -> Any:
        formula.seen.clear()
        x, y = arguments().args
        side.op(x, y).sum().backward()
        return [None if t.grad is None else t.grad.tolist() for t in (x, y)], list(formula.seen)

    both(twins, gradients)


def test_double_backward(product: tuple[Twins, Formula]) -> None:
    twins, _ = product

    def second(side: Side) -> Any:
        x = torch.full((2,), 3.0, requires_grad=True)
        y = torch.full((2,), 5.0, requires_grad=True)
        (first,) = torch.autograd.grad((side.overload(x, y, 3) ** 2).sum(), x, create_graph=True)
        return first.tolist(), [t.tolist() for t in torch.autograd.grad(first.sum(), (x, y))]

    assert isinstance(both(twins, second)[0], list)
    for side in twins.sides():
        inputs = [torch.rand(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        assert torch.autograd.gradcheck(side.op, inputs)
        assert torch.autograd.gradgradcheck(side.op, inputs)


def test_saved_tensors_and_their_hooks(product: tuple[Twins, Formula]) -> None:
    twins, _ = product

    def saved(side: Side) -> Any:
        packed: list[Any] = []

        def pack(tensor: Tensor) -> Tensor:
            packed.append(tensor.tolist())
            return tensor

        x = torch.ones(2, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor * 7):
            y = side.packet(x, torch.full((2,), 2.0))
        node: Any = y.grad_fn
        described = side.text(type(node).__name__), [t.tolist() for t in node.saved_tensors]
        y.sum().backward()
        assert x.grad is not None
        return packed, described, x.grad.tolist()

    both(twins, saved)

    def twice(side: Side) -> Any:
        y = side.op(torch.ones(2, requires_grad=True), torch.ones(2)).sum()
        y.backward()
        y.backward()

    assert "second time" in both(twins, twice)[1]


@pytest.mark.parametrize("spelling", ["object", "packet", "overload"])
def test_torch_func_over_a_formula_is_refused_as_before(product: tuple[Twins, Formula], spelling: str) -> None:
    twins, _ = product
    x = torch.ones(2)

    def summed(side: Side) -> Callable[..., Any]:
        return lambda x: side.spelled(spelling)(x, torch.ones(2)).sum()

    both(twins, lambda side: torch.func.grad(summed(side))(x).tolist())
    assert isinstance(both(twins, lambda side: torch.func.grad(summed(side))(x).tolist())[0], str)
    both(twins, lambda side: torch.func.vjp(summed(side), x)[1](torch.ones(()))[0].tolist())
    both(twins, lambda side: torch.func.jacrev(summed(side))(x).tolist())
    both(twins, lambda side: torch.func.jvp(summed(side), (x,), (x,))[1].tolist())


def test_forward_mode_tangents_are_dropped_as_before(product: tuple[Twins, Formula]) -> None:
    def tangent(side: Side) -> Any:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
            result = torch.autograd.forward_ad.unpack_dual(side.op(dual, torch.ones(2)))
            return result.primal.tolist(), result.tangent

    both(product[0], tangent)


def test_a_formula_with_lists_keywords_and_integer_results() -> None:
    def body(xs: list[Tensor], *, f: float = 2.0) -> tuple[Tensor, Tensor]:
        return xs[0] * f, xs[0].to(torch.int64)

    twins = custom_twins(body, record=False)

    def setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.f = keyword_only_inputs["f"]
        ctx.many = len(inputs[0])

    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        return [gradient * ctx.f] + [None] * (ctx.many - 1)

    twins.each(lambda side: side.op.register_autograd(backward, setup_context=setup_context))
    check(twins, lambda: call([torch.ones(2, requires_grad=True), torch.ones(1)], f=3), AUTOGRAD)

    def gradients(side: Side) -> Any:
        xs = [torch.ones(2, requires_grad=True) for _ in range(2)]
        first, second = side.op(xs, f=3.0)
        first.sum().backward()
        return second.requires_grad, [None if x.grad is None else x.grad.tolist() for x in xs]

    both(twins, gradients)


@pytest.mark.parametrize("result", [None, (None, None), (torch.ones(3), None, None), "text"])
def test_formulas_that_return_the_wrong_thing(result: Any) -> None:
    twins = custom_twins(lambda x, y: x * y, schema="(Tensor x, Tensor y) -> Tensor", record=False)
    twins.each(lambda side: side.op.register_autograd(lambda ctx, gradient: result))

    def gradients(side: Side) -> Any:
        x = torch.ones(2, requires_grad=True)
        side.op(x, torch.ones(2)).sum().backward()
        return None if x.grad is None else x.grad.tolist()

    both(twins, gradients)


def test_an_exception_of_the_formula() -> None:
    def fails(ctx: Any, *rest: Any) -> Any:
        raise ValueError("no")

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        fails(ctx)

    for backward, options in ((fails, {}), (lambda ctx, gradient: gradient, {"setup_context": setup_context})):
        twins = custom_twins(doubled, record=False)
        twins.each(lambda side, b=backward, options=options: side.op.register_autograd(b, **options))
        assert both(twins, lambda side: side.op(torch.ones(2, requires_grad=True)).sum().backward()) == (
            "ValueError",
            "no",
        )
        check(twins, ones)
