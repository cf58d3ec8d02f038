"""Compares what two operators do while they record a gradient, and in what follows: backward, hooks, transforms."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import dutyfree
from parity import Pair, Side, counted, ways_between


def needing_grad(*shape: int) -> Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape or (2,)).numel()).view(shape or (2,)).requires_grad_()


def plain(value: Any, side: Side) -> Any:
    """A value without the namespace, memory addresses and tensors in it, comparable by ``==``."""
    if isinstance(value, Tensor):
        return [str(value.dtype), value.detach().tolist(), value.requires_grad, plain(value.grad_fn, side)]
    if isinstance(value, torch.autograd.graph.Node):
        return side.text(type(value).__name__), side.text(value.name())
    if isinstance(value, dict):
        return {side.text(key): plain(member, side) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(member, side) for member in value])
    return type(value).__name__, side.text(value if isinstance(value, str) else repr(value))


def done(run: Callable[[Side], Any], side: Side) -> Any:
    """What ``run`` returned or raised, as plain values."""
    try:
        return plain(run(side), side)
    except Exception as error:
        return "raised", type(error).__name__, side.text(error)


def alike(pair: Pair, run: Callable[[Side], Any], *, paths: set[str] | None = None) -> Any:
    """Asserts that ``run`` does the same with both operators; returns what.

    Of the fast operator's calls at least one has to take the AUTOGRAD path, and none another one than ``paths`` says.
    """
    paths = {"autograd"} if paths is None else paths
    expected = done(run, pair.reference)
    before = counted(pair.fast.op)
    actual = done(run, pair.fast)
    taken = {path for path, _ in ways_between(before, counted(pair.fast.op))}
    assert actual == expected, f"\n{expected}, but with dutyfree\n{actual}"
    assert taken == paths, taken
    return actual


def raised(outcome: Any) -> str:
    """The text of the error that ``alike`` returned."""
    assert outcome[0] == "raised", outcome
    return outcome[2]  # type: ignore[no-any-return]


def records(pair: Pair, *args: Any, **kwargs: Any) -> bool:
    """Whether the call would take the AUTOGRAD path."""
    return dutyfree.explain(pair.fast.op, *args, **kwargs).path == "autograd"
