"""Operators in a namespace of their own, which accelerate has not met yet."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

import dutyfree
from dutyfree import _core

aten = torch.ops.aten
_numbers = iter(range(10**6))


@pytest.fixture
def namespace() -> str:
    """A namespace of its own, with nothing in it."""
    return f"targets_{next(_numbers)}"


@pytest.fixture
def library(namespace: str) -> Iterator[torch.library.Library]:
    library = torch.library.Library(namespace, "FRAGMENT")
    yield library
    library._destroy()


def define(library: torch.library.Library, schema: str, body: Callable[..., Any] = torch.Tensor.clone) -> Any:
    """Registers an operator; returns its packet."""
    library.define(schema)
    name = schema.partition("(")[0]
    library.impl(name, body, "CPU")
    return getattr(getattr(torch.ops, library.ns), name.partition(".")[0])


def is_fronted(op: Any) -> bool:
    return isinstance(op._op, _core.OpCallable)


def path_of(op: Any, *args: Any) -> str:
    """The way that a call of ``op`` goes now, as explain says and as a call shows."""
    told = dutyfree.explain(op, *args).path
    dutyfree.reset_stats()
    op(*args)
    name = op.name() if isinstance(op, OpOverload) else op._qualified_op_name
    calls = {
        path
        for key, stat in dutyfree.stats().items()
        if key.split(".")[0] == name.split(".")[0]
        for path, count in stat.calls.items()
        if count
    }
    assert told in (calls or {"pytorch"})
    return told


X = torch.ones(2)
