"""Compares what two operators do while they record a gradient, and in what follows: backward, hooks, transforms."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dutyfree
from dutyfree.check.outcome import values_of
from parity import Pair, Side, counted, pair_of, ways_between


def needing_grad(*shape: int) -> Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape or (2,)).numel()).view(shape or (2,)).requires_grad_()


def plain(value: Any, side: Side | None = None) -> Any:
    """A value without the namespace, memory addresses and tensors in it, comparable by ``==``."""
    text = str if side is None else side.text
    if isinstance(value, Tensor):
        return [str(value.dtype), values_of(value), value.requires_grad, plain(value.grad_fn, side)]
    if isinstance(value, torch.autograd.graph.Node):
        return text(type(value).__name__), text(value.name())
    if isinstance(value, dict):
        return "dict", {text(key): plain(member, side) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(member, side) for member in value])
    return type(value).__name__, text(value if isinstance(value, str) else repr(value))


def done(run: Callable[[Side], Any], side: Side) -> Any:
    """What ``run`` returned or raised, as plain values."""
    try:
        return plain(run(side), side)
    except Exception as error:
        return "raised", type(error).__name__, side.text(error)


def alike(pair: Pair, run: Callable[[Side], Any], *, paths: set[str] | None = None, may_raise: bool = False) -> Any:
    """Asserts that ``run`` does the same with both operators, raising nothing if not ``may_raise``; returns what.

    Of the fast operator's calls at least one has to take the AUTOGRAD path, and none another one than ``paths`` says.
    """
    paths = {"autograd"} if paths is None else paths
    before = counted(pair.fast.op)
    outcome = done_alike(pair, run, may_raise=may_raise)
    taken = {path for path, _ in ways_between(before, counted(pair.fast.op))}
    assert taken == paths, taken
    return outcome


def done_alike(pair: Pair, run: Callable[[Side], Any], *, may_raise: bool = False) -> Any:
    """As ``alike``, whichever path the calls take."""
    expected, actual = (done(run, side) for side in pair.sides())
    assert actual == expected, f"\n{expected}, but with dutyfree\n{actual}"
    assert may_raise or actual[0] != "raised", actual
    return actual


def refused(pair: Pair, run: Callable[[Side], Any], *, paths: set[str] | None = None) -> str:
    """Asserts that ``run`` raises the same with both operators, on the same path as ``alike``; returns the text."""
    outcome = alike(pair, run, paths=paths, may_raise=True)
    assert outcome[0] == "raised", outcome
    return outcome[2]  # type: ignore[no-any-return]


def records(pair: Pair, *args: Any, **kwargs: Any) -> bool:
    """Whether the call would take the AUTOGRAD path."""
    return dutyfree.explain(pair.fast.op, *args, **kwargs).path == "autograd"


def exponential(x: Tensor) -> Tensor:
    return x.exp()


def double(x: Tensor) -> Tensor:
    return x * 2


def products(x: Tensor, others: list[Tensor]) -> list[Tensor]:
    return [x * other for other in others]


def product(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
    return x * y * scale


def three(x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    return x * 2, (x > 1).long(), x * count


def with_formula(
    body: Callable[..., Any],
    backward: Callable[..., Any],
    setup_context: Callable[..., Any] | None = None,
    *,
    record: bool = False,
) -> Pair:
    pair = pair_of(body, record=record)
    pair.each(lambda op: op.register_autograd(backward, setup_context=setup_context))
    return pair


def save_factors(ctx: Any, inputs: Any, output: Any) -> None:
    x, y, scale = inputs
    ctx.save_for_backward(x, y)
    ctx.scale = scale


def through_factors(ctx: Any, grad: Tensor) -> Any:
    x, y = ctx.saved_tensors
    return grad * y * ctx.scale, grad * x * ctx.scale, None


def to_first(ctx: Any, grad: Any) -> tuple[Any, ...]:
    """What a backward function returns that has a gradient for the first input only."""
    return (grad, *[None] * (len(ctx.needs_input_grad) - 1))


def with_factors(*, record: bool = False) -> Pair:
    return with_formula(product, through_factors, save_factors, record=record)


def with_product() -> Pair:
    pair = with_factors()
    pair.each(lambda op: op.register_fake(lambda x, y, scale=2.0: torch.empty_like(x)))
    return pair


def with_products() -> Pair:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], *inputs[1])

    def backward(ctx: Any, grads: Any) -> Any:
        x, *others = ctx.saved_tensors
        return sum(g * o for g, o in zip(grads, others, strict=True)), [g * x for g in grads]

    pair = with_formula(products, backward, setup_context)
    pair.each(lambda op: op.register_fake(lambda x, others: [torch.empty_like(x) for _ in others]))
    return pair


def with_exponential() -> Pair:
    """Its formula uses the result, which is recorded only where it's an output of the same level's node."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.saved_tensors[0]

    return with_formula(exponential, backward, setup_context)


def gradient_of(side: Side, *rest: Any, **keywords: Any) -> Any:
    x = needing_grad()
    result = side.op(x, *rest, **keywords)
    results = result if isinstance(result, (list, tuple)) else [result]
    sum(r.sum() for r in results if isinstance(r, Tensor) and r.requires_grad).backward()
    return result, x.grad


def step(side: Side) -> Any:
    """Forward and backward of a pair of ``with_product``."""
    x, y = needing_grad(), needing_grad()
    side.op(x, y, 3.0).sin().sum().backward()
    return x.grad, y.grad


def steps(side: Side) -> Any:
    """The same for ``with_products``."""
    x, y = needing_grad(), needing_grad()
    results = side.op(x, [y, x, torch.ones(2)])
    (results[0].sum() + results[1].sin().sum()).backward()
    return x.grad, y.grad
