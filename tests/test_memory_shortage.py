"""Memory runs out at each allocation of a call in turn: MemoryError or the right result, and nothing is left behind.

Each kind of call runs in a process of its own, since what is looked for there are crashes (custom_op's own calls end in
them, so there is nothing to compare with). Only Python's allocations fail; PyTorch's own go on.
"""

import gc
import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from isolated import run_isolated
from parity import thread_state, unique_namespaces

_testcapi = pytest.importorskip("_testcapi", reason="this Python was installed without its own test modules")

KEPT = torch.ones(2)
OTHER = torch.ones(1)
# More than any of the calls allocates; those beyond the last must all succeed.
ALLOCATIONS, BEYOND = 30, 10
REPEATS = 1000


def plain(x: Tensor) -> Tensor:
    return KEPT


def lists(tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
    return [KEPT, OTHER]


def scaled(x: Tensor, factor: float) -> Tensor:
    return KEPT


def with_defaults(x: Tensor, sizes: list[int], count: int = 1, factor: float = 0.5, *, mode: str = "a") -> Tensor:
    return KEPT


def several(x: Tensor) -> tuple[Tensor, int, float]:
    return KEPT, 2**40, 3


def tuple_for_list(x: Tensor) -> list[Tensor]:
    return KEPT, OTHER  # type: ignore[return-value]


def kept_list(x: Tensor) -> list[Tensor]:
    return LIST


LIST = [KEPT, OTHER]


def mutates(x: Tensor, tensors: list[Tensor]) -> None:
    pass


@dataclass
class Kind:
    body: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    mutates: tuple[str, ...] = ()
    # Whether the call needs memory at all, its body included.
    allocates: bool = True


X = torch.ones(2)
KINDS = {
    "plain": Kind(plain, (X,), allocates=False),
    "lists": Kind(lists, ([X, X], [1, 2, 3])),
    "tuple for a list": Kind(lists, ((X, X), (1, 2, 3))),
    "int for a float": Kind(scaled, (X, 2**40)),
    "keyword": Kind(with_defaults, (X,), {"sizes": [1], "factor": 0.25}),
    "keyword-only": Kind(with_defaults, (X, [1]), {"mode": "b"}),
    "default filled in": Kind(with_defaults, (X, [1]), {"factor": 3}),
    "several results": Kind(several, (X,)),
    "tuple for a list returned": Kind(tuple_for_list, (X,)),
    "kept list returned": Kind(kept_list, (X,)),
    "mutated": Kind(mutates, (X, [X]), mutates=("x", "tensors")),
}


def emptied_free_lists() -> list[Any]:
    """Objects that hold what CPython keeps for the next list, float or small tuple, so that the call must allocate."""
    return [[[] for _ in range(100)], [float(n) for n in range(120)], [tuple([n] * 2) for n in range(2100)]]


def attempt(function: Callable[..., Any], kind: Kind, failing: tuple[int, int]) -> Any:
    """The result of a call whose allocations from the first to before the second fail (0: all), or MemoryError."""
    args, kwargs = kind.args, kind.kwargs
    _testcapi.set_nomemory(*failing)
    try:
        result = function(*args, **kwargs)
    except MemoryError:
        result = MemoryError
    finally:
        _testcapi.remove_mem_hooks()
    return result


def shown(result: Any) -> Any:
    """A result as something to compare: tensors by identity, since all of them are kept."""
    if isinstance(result, (list, tuple)):
        return type(result), [shown(member) for member in result]
    return id(result) if isinstance(result, Tensor) else (type(result), result)


def fail_every_allocation(name: str) -> None:
    kind = KINDS[name]
    op: Any = dutyfree.fast_custom_op(f"{unique_namespaces()[1]}::op", kind.body, mutates_args=kind.mutates)
    watched = [X, KEPT, OTHER, LIST, kind.body, *(value for value in kind.args if isinstance(value, (Tensor, list)))]
    for spelled in (op, op._opoverload, op._opoverload.overloadpacket):
        assert dutyfree.explain(spelled, *kind.args, **kind.kwargs).path == "direct"
        expected = shown(spelled(*kind.args, **kind.kwargs))
        state = thread_state()
        failed = 0
        for allocation, lasts in itertools.product(range(ALLOCATIONS), (False, True)):
            version = X._version
            counts = [sys.getrefcount(value) for value in watched]
            held = emptied_free_lists()
            result = attempt(spelled, kind, (allocation, 0 if lasts else allocation + 1))
            del held
            bumps = X._version - version
            if result is MemoryError:
                failed += 1
                assert allocation < ALLOCATIONS - BEYOND, "a call allocates more than this test lets fail"
                assert bumps in (0, len(kind.mutates))
            else:
                assert shown(result) == expected
                assert bumps == len(kind.mutates)
            del result
            assert thread_state() == state
            assert [sys.getrefcount(value) for value in watched] == counts
        assert (failed > 0) == kind.allocates
    leaves_nothing(op, kind)


def leaves_nothing(function: Callable[..., Any], kind: Kind) -> None:
    for allocation in range(7):
        failing = (allocation, allocation + 1)
        for _ in range(REPEATS // 10):  # PyTorch imports and caches when its own path runs first
            attempt(function, kind, failing)
        gc.collect()
        gc.freeze()  # what is collected below is what the calls left, not all that PyTorch imported
        blocks = sys.getallocatedblocks()
        for _ in range(REPEATS):
            attempt(function, kind, failing)
        gc.collect()
        assert sys.getallocatedblocks() - blocks < REPEATS // 4, f"allocation {allocation}"


def child() -> None:
    """What run_isolated calls; the kind comes by the environment."""
    fail_every_allocation(os.environ["KIND"])


@pytest.mark.parametrize("name", KINDS)
def test_a_failed_allocation_is_a_memory_error_or_costs_nothing(name: str) -> None:
    run_isolated(child, KIND=name)
