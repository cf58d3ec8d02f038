"""Schemas for annotations that torch.library.infer_schema of torch 2.13 refuses although the operator would work.

Two kinds: names that only the function around the decorated one knows (with ``from __future__ import annotations`` an
annotation is text, and PyTorch evaluates it in the module's globals alone), and ``list[Tensor] | None``.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from dutyfree._closures import made_again

_OPTIONAL_TENSOR_LIST = typing.Optional[list[torch.Tensor]]  # noqa: UP045
# A type that infer_schema knows and that no annotation is resolved to: it marks the place of the one it doesn't know.
_PLACEHOLDER = typing.Optional[list[bool]]  # noqa: UP045
_PLACEHOLDER_SCHEMA = "bool[]?"


def infer_where_pytorch_cannot(
    fn: Callable[..., Any], mutates_args: str | Iterable[str], tags: Any, caller: types.FrameType
) -> str | None:
    """The schema of ``fn``, or None where PyTorch infers it, or where it can't be inferred here either.

    Args:
        fn: The function.
        mutates_args: As for :func:`dutyfree.fast_custom_op`.
        tags: The operator's tags.
        caller: The annotations may use its local names, beyond the function's globals and what it closes over.
    """
    if not isinstance(fn, types.FunctionType):
        return None
    mutated = mutates_args if isinstance(mutates_args, str) else tuple(mutates_args)
    try:
        torch.library.infer_schema(fn, mutates_args=mutated, tags=tags)
    except ValueError:
        pass
    else:
        return None
    try:
        # Not before they are needed: CPython keeps what f_locals showed for as long as the caller runs.
        return _infer(_with_resolved_annotations(fn, caller.f_locals), mutated, tags)
    except (ValueError, NameError, TypeError):
        return None  # PyTorch's own inference raises its own error


def mutated_names(schema: str) -> set[str]:
    """The arguments that ``schema`` (without an operator name) says are written to."""
    parsed = torch._C.parse_schema(f"dutyfree{schema}")
    return {a.name for a in parsed.arguments if a.alias_info is not None and a.alias_info.is_write}


def _with_resolved_annotations(fn: types.FunctionType, names: Mapping[str, Any]) -> types.FunctionType:
    closed_over = dict(inspect.getclosurevars(fn).nonlocals)
    resolved = made_again(fn)
    resolved.__annotations__ = {
        name: eval(annotation, fn.__globals__, {**names, **closed_over}) if isinstance(annotation, str) else annotation
        for name, annotation in fn.__annotations__.items()
    }
    return resolved


def _infer(fn: types.FunctionType, mutated: str | tuple[str, ...], tags: Any) -> str:
    marked = {
        name
        for name, annotation in fn.__annotations__.items()
        if name != "return" and annotation == _OPTIONAL_TENSOR_LIST
    }
    for name in marked:
        fn.__annotations__[name] = _PLACEHOLDER
    pytorchs = mutated if isinstance(mutated, str) else tuple(name for name in mutated if name not in marked)
    schema = torch.library.infer_schema(fn, mutates_args=pytorchs, tags=tags)
    for index, name in enumerate(inspect.signature(fn).parameters):
        if name in marked:
            writes = mutated == "unknown" or name in mutated
            tensors = f"Tensor(a{index}!)[]?" if writes else "Tensor[]?"
            schema = re.sub(rf"{re.escape(_PLACEHOLDER_SCHEMA)} {name}\b", f"{tensors} {name}", schema)
    return schema
