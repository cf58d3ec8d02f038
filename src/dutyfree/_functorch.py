"""Lets operators with an autograd formula be differentiated by torch.func (grad, vjp, jacrev, vmap of grad, hessian).

``torch.autograd.Function.apply`` refuses to work under torch.func's transforms, since it can't know what a ``forward``
does. custom_op's only calls the operator below autograd, through the dispatcher, which leads to functorch's next level.
So each level may record a node of its own, as functorch itself does for the Functions that it makes of a user's.

Forward mode is the exception: an operator of custom_op drops tangents, PyTorch makes zeros of them. A gradient of such
zeros, or a tangent of a gradient whose formula uses the operator's result, would be wrong without a word. So where both
meet, PyTorch's refusal stands.
"""

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch._functorch.utils import enable_single_level_autograd_function
from torch._library.custom_ops import CustomOpDef
from torch.autograd import forward_ad

from dutyfree._closures import closure_of, made_again


class _Thread(threading.local):
    # How many levels above the present one took a call on without its tangents.
    dropped_tangents = 0


_thread = _Thread()


def allow(
    kernel: types.FunctionType,
    generated: Any,
    flattens_lists: bool,
    apply_of: Callable[[type], Callable[..., Any]],
    definition: CustomOpDef,
) -> None:
    """Let custom_op's autograd kernel ``kernel``, whose Function is ``generated``, work under torch.func.

    ``apply_of`` gives torch's own ``apply`` of a Function, below the refusal.
    """
    cells = closure_of(kernel)
    flattening = closure_of(generated.apply) if flattens_lists else {"orig_apply": None}
    if "forward_no_grad" not in cells or "orig_apply" not in flattening:
        return  # an unknown torch, whose refusal stands
    cells["forward_no_grad"].cell_contents = _noting_dropped_tangents(cells["forward_no_grad"].cell_contents)
    # Made when it is first needed, which for most operators is never.
    at_one_level = functools.cache(lambda: apply_of(_recording_at_every_level(generated, flattens_lists)))

    def works(cls: type, args: tuple[Any, ...]) -> bool:
        return (
            torch._C._are_functorch_transforms_active()
            and cls is generated
            and definition._backward_fn is not None
            and not _forward_mode_is_involved(args)
        )

    if flattens_lists:  # then it calls the other one
        cell: Any = flattening["orig_apply"]
        original = cell.cell_contents
        cell.cell_contents = functools.partial(_applying(lambda cls: original, works, at_one_level), generated)
    else:
        # Looked up when it is called: someone may have put another function there, or derived a class.
        generated.apply = classmethod(_applying(lambda cls: super(generated, cls).apply, works, at_one_level))


class _GradModeOn:
    """Stands for the operator in ``forward``, where ``apply`` has turned grad mode off.

    The levels that the call goes on to would record nothing: a second derivative would be wrong without a word.
    """

    def __init__(self, op: Any) -> None:
        self._op = op

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)

    def redispatch(self, keyset: Any, /, *args: Any, **kwargs: Any) -> Any:
        # functorch itself turns it off again where the program around its transforms has it off.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return self._op.redispatch(keyset, *args, **kwargs)


def _recording_at_every_level(generated: Any, flattens_lists: bool) -> type:
    """The same Function, whose ``forward`` takes the call on with grad mode on."""
    outer = generated.forward
    inner = closure_of(outer)["orig_forward"].cell_contents if flattens_lists else outer
    inner = made_again(inner, op=_GradModeOn(closure_of(inner)["op"].cell_contents))
    forward = made_again(outer, orig_forward=inner) if flattens_lists else inner
    return type(generated.__name__, (generated,), {"forward": staticmethod(forward)})


def _applying(
    original_of: Callable[[Any], Callable[..., Any]],
    works: Callable[[type, tuple[Any, ...]], bool],
    at_one_level: Callable[[], Callable[..., Any]],
) -> Callable[..., Any]:
    def apply(cls: Any, *args: Any) -> Any:
        if not works(cls, args):
            return original_of(cls)(*args)
        with enable_single_level_autograd_function():
            return at_one_level()(*args)

    return apply


def _noting_dropped_tangents(forward: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` takes a call that records no gradient to the next level, which does not see this one any more."""

    # Every call that records no gradient and goes PyTorch's way comes by here, so what it costs is kept low.
    transforms_active = torch._C._are_functorch_transforms_active

    def forward_no_grad(*args: Any) -> Any:
        if not transforms_active() or not _forward_mode_is_involved(args):
            return forward(*args)
        _thread.dropped_tangents += 1
        try:
            return forward(*args)
        finally:
            _thread.dropped_tangents -= 1

    return forward_no_grad


def _forward_mode_is_involved(args: tuple[Any, ...]) -> bool:
    if _thread.dropped_tangents > 0:
        return True
    forward_mode = torch._C._functorch.TransformType.Jvp
    if any(level.key() == forward_mode for level in retrieve_all_functorch_interpreters()):
        return True
    # An ordinary dual level belongs to the whole process; what counts is whether it gave this call's tensors tangents.
    if forward_ad._current_level < 0:
        return False
    members = [member for arg in args for member in (arg if isinstance(arg, list) else [arg])]
    return any(_has_tangent(member) for member in members if isinstance(member, torch.Tensor))


def _has_tangent(tensor: torch.Tensor) -> bool:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    # Nobody is to see this question: no transform, no mode.
    with torch._C._DisableFuncTorch(), torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return torch._VF._unpack_dual(tensor, level=0)[1] is not None
