"""The autograd side of an operator: the torch.autograd.Function whose nodes its calls make.

PyTorch makes one for each custom operator. Derived from it here is one for the core, which differs in two functions
that are C: ``forward``, and the node's ``apply``. All the rest is inherited, the name and ``backward`` too, which a
compiled backward traces.
"""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree

from dutyfree import _core, _functorch
from dutyfree._closures import closure_of, made_again

_FLATTENS_LISTS = "supports_tensorlist.<locals>.new_apply"
_A_BACKWARD = "supports_tensorlist.<locals>.new_backward"


def _is_torchs(function: Any) -> bool:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and code.co_filename == torch.autograd.function.__file__


# A program that replaced one of them before it imported dutyfree has PyTorch record all gradients.
if _is_torchs(torch.autograd.Function.apply) and _is_torchs(BackwardCFunction.apply):
    _core.watch_apply(torch.autograd.Function, BackwardCFunction)


def prepare(kernel: Any, definition: CustomOpDef) -> tuple[Callable[..., Any] | None, Any, bool]:
    """What the core needs to record gradients as the autograd kernel ``kernel`` does: the last arguments of
    ``_core.Operator.know_autograd``.

    Where the kernel is built in another way than this code knows, there is no ``apply``, and PyTorch records them.
    """
    generated = _function_of(kernel) if isinstance(kernel, types.FunctionType) else None
    if generated is not None:
        _functorch.allow(kernel, generated, _flattens_lists(generated), _apply_of, definition)
    return prepare_as_it_is(kernel, definition)


def prepare_as_it_is(kernel: Any, definition: Any) -> tuple[Callable[..., Any] | None, Any, bool]:
    """The same, but torch.func refuses the operator as PyTorch has it: nothing of the kernel's changes.

    ``definition`` may be whatever has the formula (see ``formula_of``).
    """
    generated = _function_of(kernel) if isinstance(kernel, types.FunctionType) else None
    if generated is None or definition is None:
        return None, definition, False
    flattens_lists = _flattens_lists(generated)
    direct: Any = type(generated.__name__, (generated,), {"forward": staticmethod(_core.run_forward)})
    node = direct._backward_cls
    node.apply = _core.run_backward_with_lists if flattens_lists else _core.run_backward
    node._definition = definition
    return _apply_of(direct), definition, flattens_lists


def _function_of(kernel: types.FunctionType) -> Any:
    """The class ``Generated`` that make_autograd_impl's kernel uses, or None."""
    cell = closure_of(kernel).get("Generated")
    generated = cell.cell_contents if cell is not None else None
    if isinstance(generated, type) and issubclass(generated, torch.autograd.Function):
        return generated
    return None


def _flattens_lists(generated: Any) -> bool:
    return getattr(generated.apply, "__qualname__", "") == _FLATTENS_LISTS


def formula_of(kernel: types.FunctionType) -> Any:
    """What make_autograd_impl's kernel takes its formula from, on every call: the CustomOpDef, or an object with the
    same ``_backward_fn`` and ``_setup_context_fn``."""
    generated = _function_of(kernel)
    if generated is None:
        return None
    forward = closure_of(generated.forward).get("orig_forward")
    cell = closure_of(generated.forward if forward is None else forward.cell_contents).get("info")
    return None if cell is None else cell.cell_contents


def _apply_of(function: type) -> Callable[..., Any]:
    """torch's C implementation of ``function.apply``."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc,no-any-return]


def tree_spec(sizes: list[int]) -> _pytree.TreeSpec:
    """The structure of a tuple of values: single ones (-1) and lists of so many."""
    values = tuple(0 if size < 0 else [0] * size for size in sizes)
    return _pytree.tree_structure(values)


def flat_gradients(node: Any, gradients: tuple[Any, ...]) -> Any:
    """What PyTorch makes of what a backward function returned, for an operator with lists of tensors.

    It is PyTorch's own code, over a backward function that has run already.
    """
    backward = node._forward_cls.backward
    if getattr(backward, "__qualname__", "") != _A_BACKWARD:
        raise RuntimeError(f"unknown kind of backward in torch {torch.__version__}: {backward}")
    outputs = node._pt_metadata.output_spec.num_leaves
    return made_again(backward, orig_backward=lambda ctx, *grads: gradients)(node, *[None] * outputs)
