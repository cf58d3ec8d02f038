"""Calls of operators by accelerate's boxed path, beside the same calls without it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dutyfree
from dutyfree.check.outcome import Arguments, Outcome, Side, observe

aten = torch.ops.aten


def operator(name: str) -> Any:
    """``"aten.add.Tensor"`` is an overload, ``"aten.add"`` a packet."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


def qualname(op: Any) -> str:
    return str(op.name() if isinstance(op, torch._ops.OpOverload) else op._qualified_op_name)


def calls_of(op: Any) -> dict[str, int]:
    """The calls by path of an operator, of all its overloads together. A packet asks one overload after the other, so
    several may count one call as PyTorch's."""
    name = qualname(op)
    counted = [stat.calls for key, stat in dutyfree.stats().items() if key == name or key.startswith(f"{name}.")]
    return {path: sum(calls[path] for calls in counted) for path in ("direct", "autograd", "boxed", "pytorch")}


def took(op: Any, path: str) -> None:
    """Asserts that since the last reset, calls of ``op`` went that way and none another."""
    calls = calls_of(op)
    others = {"direct", "autograd", "boxed"} - {path}
    assert calls[path] > 0, calls
    assert all(calls[other] == 0 for other in others), calls


def outcome(op: Any, make: Callable[[], Arguments]) -> Outcome:
    side = Side("aten", qualname(op), op)
    arguments = make()
    torch.manual_seed(0)
    return observe(side, lambda: op(*arguments.args, **arguments.kwargs), arguments)


def compare(op: Any, make: Callable[[], Arguments], path: str = "boxed") -> Outcome:
    """Calls ``op`` without and with accelerate and asserts that both did the same, the second by ``path``."""
    expected = outcome(op, make)
    dutyfree.accelerate(op)
    dutyfree.reset_stats()
    found = outcome(op, make)
    took(op, path)
    assert found == expected
    return found


def t(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    size = int(np.prod(shape)) if shape else 1
    return torch.arange(1, size + 1).to(dtype).reshape(shape).clone()


def grad(*shape: int) -> Tensor:
    return t(*shape).requires_grad_()


def view(*shape: int) -> Tensor:
    return t(2, *shape)[1]


def inference(*shape: int) -> Tensor:
    with torch.inference_mode():
        return t(*shape)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def numbered(cases: list[tuple[str, Callable[[], Arguments]]]) -> Any:
    names = [name for name, _ in cases]
    ids = [f"{name}-{names[: index + 1].count(name)}" for index, name in enumerate(names)]
    return pytest.mark.parametrize(("name", "make"), cases, ids=ids)


def twice(ops: list[Any], run: Callable[[], Any]) -> Any:
    """Runs code without and with accelerate; asserts that it returned equal values, and that every one of the operators
    was boxed."""
    expected = run()
    for op in ops:
        dutyfree.accelerate(op)
    dutyfree.reset_stats()
    found = run()
    assert found == expected
    for op in ops:
        took(op, "boxed")
    return found
