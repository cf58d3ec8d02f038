"""Operators with a fault that none of the core's seeded ones shows, for the fuzzer to find.

Each stands in place of fast_custom_op. It has the fault in Python, so that no core of its own has to be built.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from dutyfree import fast_custom_op


class Faulty:
    """An operator whose calls go through ``around``; everything else is the operator's."""

    def __init__(self, op: Any, around: Callable[..., Any]) -> None:
        self._op = op
        self._around = around

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._around(self._op, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


def with_call(around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(around)
    def register(name: str, body: Callable[..., Any], **options: Any) -> Any:
        return Faulty(fast_custom_op(name, body, **options), around)

    return register


@with_call
def dispatch_modes_are_ignored(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    with torch._C._DisableTorchDispatch():
        return op(*args, **kwargs)


@with_call
def autocast_rules_are_ignored(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return op(*args, **kwargs)


def later_kernels_are_ignored(name: str, body: Callable[..., Any], **options: Any) -> Any:
    faulty = Faulty(fast_custom_op(name, body, **options), lambda op, /, *args, **kwargs: op(*args, **kwargs))
    faulty.register_kernel = lambda device_types, fn=None: fn or (lambda fn: fn)  # type: ignore[attr-defined]
    return faulty


@with_call
def version_is_not_bumped(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The core has this one too; here it shows that a saved script finds it."""
    tensors = [t for t in _pytree.tree_leaves((args, kwargs)) if type(t) is Tensor and not t.is_inference()]
    with torch.autograd._unsafe_preserve_version_counter(tuple(tensors)):
        return op(*args, **kwargs)
