"""Calls an operator under a functorch transform, over the tensors among its arguments."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from dutyfree.check.fuzz.kit import tensors_in

# Those that record a gradient through functorch's own levels.
DIFFERENTIATING = ("grad", "vjp", "jacrev", "vmap of grad")
TRANSFORMS = ("vmap", "vmap twice", "vmap over one", *DIFFERENTIATING, "jvp", "jacfwd", "functionalize")

# What torch.autograd does for the same gradients: to tell whether they are right, not to be drawn.
BY_AUTOGRAD = {"grad": "autograd, first", "jacrev": "autograd, first", "vjp": "autograd, all"}


def through(transform: str, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``target(*args, **kwargs)`` as a function of its floating-point tensors, under ``transform``."""
    leaves = [tensor for tensor in tensors_in([args, kwargs]) if tensor.is_floating_point()]

    def function(*tensors: Tensor) -> Any:
        given = iter(tensors)
        return target(*filled(args, given), **filled(kwargs, given))

    def scalar(*tensors: Tensor) -> Tensor:
        return total(function(*tensors))

    if transform == "vmap":
        return torch.vmap(function)(*leaves)
    if transform == "vmap twice":
        return torch.vmap(torch.vmap(function))(*leaves)
    if transform == "vmap over one":
        return torch.vmap(function, in_dims=(0, *[None] * (len(leaves) - 1)))(*leaves)
    if transform == "vmap of grad":
        return torch.vmap(torch.func.grad(scalar))(*leaves)
    if transform in ("grad", "jacrev", "jacfwd"):
        return getattr(torch.func, transform)(scalar)(*leaves)
    if transform == "vjp":
        value, backward, *_ = torch.func.vjp(scalar, *leaves)
        return value, backward(torch.ones_like(value))
    if transform in BY_AUTOGRAD.values():
        wanted = leaves if transform == "autograd, all" else leaves[:1]
        with torch.enable_grad():
            variables = [leaf.detach().requires_grad_() for leaf in leaves]
            value = scalar(*variables)
            found = torch.autograd.grad(value, variables[: len(wanted)], materialize_grads=True)
        return (value.detach(), found) if transform == "autograd, all" else found[0]
    if transform == "jvp":
        return torch.func.jvp(function, tuple(leaves), tuple(map(torch.ones_like, leaves)))
    return torch.func.functionalize(function)(*leaves)


def filled(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The value with its floating-point tensors replaced by the next ones."""
    if isinstance(value, Tensor):
        return next(tensors) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: filled(member, tensors) for name, member in value.items()}
    if type(value) in (list, tuple):
        return type(value)(filled(member, tensors) for member in value)
    return value


def total(result: Any) -> Tensor:
    floating = [tensor.sum() for tensor in tensors_in(result) if tensor.is_floating_point()]
    return torch.stack(floating).sum() if floating else torch.zeros(())
