"""Lets operators with an autograd formula be differentiated by torch.func (grad, vjp, jacrev, vmap of grad, hessian).

``torch.autograd.Function.apply`` refuses to work under torch.func's transforms, since it can't know what a ``forward``
does. custom_op's only calls the operator below autograd, through the dispatcher, which leads to functorch's next level. So
each level may record a node of its own, as functorch itself does for the Functions that it makes of a user's.

Forward mode is the exception: an operator of custom_op drops tangents, PyTorch makes zeros of them. A gradient of such zeros,
or a tangent of a gradient whose formula uses the operator's result, would be wrong without a word. So where both meet,
PyTorch's refusal stands.
"""

import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch._library.custom_ops import CustomOpDef
from torch.autograd import forward_ad

from dutyfree._closures import closure_of


class _Thread(threading.local):
    # How many levels above the present one took a call on without its tangents.
    dropped_tangents = 0


_thread = _Thread()


def allow(
    kernel: types.FunctionType, generated: Any, at_one_level: Callable[..., Any], definition: CustomOpDef
) -> None:
    """Let custom_op's autograd kernel ``kernel``, whose Function is ``generated``, work under torch.func.

    ``at_one_level`` is torch's own ``generated.apply``, below the refusal.
    """
    cells = closure_of(kernel)
    if "forward_no_grad" not in cells:
        return
    cells["forward_no_grad"].cell_contents = _noting_dropped_tangents(cells["forward_no_grad"].cell_contents)
    if isinstance(generated.apply, types.FunctionType):  # it takes lists of tensors apart, then calls the other one
        cell = closure_of(generated.apply)["orig_apply"]
        cell.cell_contents = _applying(cell.cell_contents, at_one_level, definition)
    else:
        generated.apply = _applying(generated.apply, at_one_level, definition)


def _applying(
    original: Callable[..., Any], at_one_level: Callable[..., Any], definition: CustomOpDef
) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        if (
            not torch._C._are_functorch_transforms_active()
            or definition._backward_fn is None
            or _forward_mode_is_involved()
        ):
            return original(*args)
        with enable_single_level_autograd_function():
            return at_one_level(*args)

    return apply


def _noting_dropped_tangents(forward: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` takes a call that records no gradient to the next level, which does not see this one any more."""

    def forward_no_grad(*args: Any) -> Any:
        if not torch._C._are_functorch_transforms_active() or not _forward_mode_is_involved():
            return forward(*args)
        _thread.dropped_tangents += 1
        try:
            return forward(*args)
        finally:
            _thread.dropped_tangents -= 1

    return forward_no_grad


def _forward_mode_is_involved() -> bool:
    if _thread.dropped_tangents > 0 or forward_ad._current_level >= 0:
        return True
    forward_mode = torch._C._functorch.TransformType.Jvp
    return any(level.key() == forward_mode for level in retrieve_all_functorch_interpreters())
