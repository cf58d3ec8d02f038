"""torch.func transforms and vmap over an operator."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from parity import SPELLINGS, Pair, Side, call, check, pair_of, took


def product(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    return x * y * scale


def with_vmap() -> Pair:
    pair = pair_of(product)

    def rule(info: Any, in_dims: Any, x: Tensor, y: Tensor, scale: float = 1.0) -> Any:
        moved = [t if dim is None else t.movedim(dim, 0) for t, dim in zip((x, y), in_dims, strict=False)]
        return moved[0] * moved[1] * scale, 0

    pair.each(lambda op: op.register_vmap(rule))
    return pair


def with_formula() -> Pair:
    pair = pair_of(product)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])

    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x, None

    pair.each(lambda op: op.register_autograd(backward, setup_context=setup_context))
    return pair


def result_of(run: Callable[[Side], Any], side: Side) -> Any:
    try:
        return run(side)
    except Exception as error:
        return type(error).__name__, side.text(error)


def same_for_both(pair: Pair, run: Callable[[Side], Any]) -> Any:
    results = [result_of(run, side) for side in pair.sides()]
    assert results[0] == results[1]
    return results[1]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_vmap_runs_the_registered_rule(spelling: str) -> None:
    pair = with_vmap()
    x, y = torch.arange(6.0).view(3, 2), torch.ones(2) * 2

    def batched(side: Side) -> Any:
        return torch.vmap(side.spelled(spelling), in_dims=(0, None))(x, y).tolist()

    assert same_for_both(pair, batched) == (x * y).tolist()
    with took(pair.fast, "thread-state"):
        torch.vmap(pair.fast.spelled(spelling), in_dims=(0, None))(x, y)
    check(pair, lambda: call(x, y))


def test_vmap_over_other_dimensions_and_nested_vmap() -> None:
    pair = with_vmap()
    x = torch.arange(24.0).view(2, 3, 4)
    assert same_for_both(pair, lambda side: torch.vmap(side.op, in_dims=(1, 1))(x, x).tolist())
    nested = same_for_both(pair, lambda side: torch.vmap(torch.vmap(side.op))(x, x).tolist())
    assert nested == (x * x).tolist()


def test_vmap_without_a_rule_acts_as_in_pytorch() -> None:
    x = torch.arange(6.0).view(3, 2)
    same_for_both(pair_of(product), lambda side: torch.vmap(side.op)(x, x).tolist())


def test_an_unbatched_call_inside_vmap_acts_as_in_pytorch() -> None:
    plain = torch.ones(2)

    def run(side: Side) -> Any:
        return torch.vmap(lambda x: x + side.op(plain, plain))(torch.zeros(3, 2)).tolist()

    same_for_both(with_vmap(), run)
    same_for_both(pair_of(product), run)


@pytest.mark.parametrize("transform", ["grad", "jacrev", "vjp", "jvp", "jacfwd", "hessian", "linearize"])
def test_reverse_mode_works_and_the_other_transforms_act_as_in_pytorch(transform: str) -> None:
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])

    def run(side: Side) -> Any:
        def function(x: Tensor) -> Tensor:
            return side.op(x, y, 1.0).sum()  # type: ignore[no-any-return]

        if transform == "vjp":
            return torch.func.vjp(function, x)[1](torch.tensor(1.0))[0].tolist()
        if transform == "jvp":
            return [value.tolist() for value in torch.func.jvp(function, (x,), (torch.ones(2),))]
        if transform == "linearize":
            return torch.func.linearize(function, x)[1](torch.ones(2)).tolist()
        return getattr(torch.func, transform)(function)(x).tolist()

    pair = with_formula()
    reference, ours = (result_of(run, side) for side in pair.sides())
    exact = {"grad": [3.0, 4.0], "jacrev": [3.0, 4.0], "vjp": [3.0, 4.0]}
    if transform in exact:
        assert ours == exact[transform]
        assert reference[0] == "RuntimeError"
    else:
        assert ours == reference


def twice(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return torch.func.grad(lambda x: torch.func.grad(function)(x).sum())  # type: ignore[no-any-return]


def in_autograd(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def outer(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(torch.func.grad(function)(x).sum(), x)[0]

    return outer


NESTED = {
    "grad of grad": twice,
    "jacrev of jacrev": lambda function: torch.func.jacrev(torch.func.jacrev(function)),
    "grad inside autograd": in_autograd,
    "vmap of grad": lambda function: torch.func.vmap(torch.func.grad(lambda x: function(x[None]))),
    "grad of vmap": lambda function: torch.func.grad(
        lambda x: torch.func.vmap(lambda row: function(row[None]))(x).sum()
    ),
}


@pytest.mark.parametrize("nesting", NESTED)
def test_nested_transforms_give_the_right_values(nesting: str) -> None:
    """The result goes through a function with a second derivative, so that each level has to see it."""
    op = with_formula().fast.op
    x = torch.tensor([0.5, 1.5])
    ours = NESTED[nesting](lambda x: op(x, x).sin().sum())(x)
    torch.testing.assert_close(ours, NESTED[nesting](lambda x: (x * x).sin().sum())(x))


def test_a_dual_level_counts_where_it_gave_tangents() -> None:
    """It belongs to the process: another thread's must not make this one's gradients fail."""
    op = with_formula().fast.op
    x = torch.tensor([0.5, 1.5])
    with forward_ad.dual_level():
        gradient = torch.func.grad(lambda x: op(x, x).sum())
        assert gradient(x).tolist() == [1.0, 3.0]
        with pytest.raises(RuntimeError, match="setup_context"):
            gradient(forward_ad.make_dual(x, torch.ones(2)))


def test_modes_see_a_differentiated_call_as_in_pytorch() -> None:
    seen: list[list[str]] = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen[-1].append(str(func).replace(side.namespace, "NAMESPACE"))
            return func(*args, **(kwargs or {}))

    for side in pair_of(product).sides():  # without a formula both refuse, after the same calls
        seen.append([])
        x = torch.ones(2)
        with Log(), forward_ad.dual_level(), pytest.raises(RuntimeError, match="setup_context"):
            torch.func.grad(lambda x, op=side.op: op(x, x).sum())(x)
    assert seen[0] == seen[1]


def test_func_transforms_leave_the_direct_path() -> None:
    pair = with_formula()
    y = torch.ones(2)
    with took(pair.fast, "thread-state"):
        result_of(lambda side: torch.func.grad(lambda x: side.op(x, y).sum())(torch.ones(2)), pair.fast)
    check(pair, lambda: call(torch.ones(2), y))


def test_a_vmap_rule_may_be_replaced() -> None:
    pair = with_vmap()
    x = torch.ones(3, 2)
    same_for_both(pair, lambda side: torch.vmap(side.op)(x, x).tolist())
    pair.each(lambda op: op.register_vmap(lambda info, in_dims, x, y: (x * 0, 0)))
    assert same_for_both(pair, lambda side: torch.vmap(side.op)(x, x).tolist()) == (x * 0).tolist()


def test_per_sample_gradients_of_a_model_that_holds_the_operator() -> None:
    x = torch.arange(6.0).view(3, 2)

    def run(side: Side) -> Any:
        weight = torch.ones(2)
        return torch.func.vmap(torch.func.grad(lambda w, row: side.op(w, row).sum()), in_dims=(None, 0))(
            weight, x
        ).tolist()

    pair = with_formula()
    reference, ours = (result_of(run, side) for side in pair.sides())
    assert ours in (reference, x.tolist())
