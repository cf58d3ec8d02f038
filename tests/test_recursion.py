"""Operators that call themselves without end: RecursionError at the interpreter's limit, at whatever depth that is."""

import sys
import threading

import pytest
import torch
from torch import Tensor

import dutyfree
from isolated import run_isolated
from parity import SPELLINGS, thread_state, unique_namespaces

DEEP = 10_000
# Enough for that many frames of C code, each with a call's arguments in it.
STACK = 512 << 20


def recurse(limit: int | None) -> None:
    def body(x: Tensor, tensors: list[Tensor]) -> Tensor:
        nonlocal depth, deepest
        depth += 1
        try:
            deepest = max(deepest, depth)
            return spelled(x, tensors) if endless or depth < 10 else x.clone()  # type: ignore[no-any-return]
        finally:
            depth -= 1

    op = dutyfree.fast_custom_op(f"{unique_namespaces()[1]}::op", body)
    x, tensors = torch.ones(1), [torch.ones(1)]
    before = thread_state()
    if limit is not None:
        sys.setrecursionlimit(limit)
    spellings = {"object": op, "packet": op._opoverload.overloadpacket, "overload": op._opoverload}
    for spelling in SPELLINGS:
        spelled = spellings[spelling]
        counts = sys.getrefcount(x), sys.getrefcount(tensors)
        depth = deepest = 0
        for endless in (True, False, True, False):
            if endless:
                with pytest.raises(RecursionError):
                    spelled(x, tensors)
            else:
                assert spelled(x, tensors).tolist() == [1.0]
            assert (depth, thread_state()) == (0, before)
        assert deepest > (limit or 1000) // 3
        assert (sys.getrefcount(x), sys.getrefcount(tensors)) == counts


def recurse_to_the_usual_limit() -> None:
    recurse(None)


def recurse_deeply() -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            recurse(DEEP)
        except BaseException as error:
            errors.append(error)

    threading.stack_size(STACK)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not errors, errors


def test_endless_recursion_ends_at_the_usual_limit_in_every_spelling() -> None:
    run_isolated(recurse_to_the_usual_limit)


def test_endless_recursion_ends_at_a_raised_limit_too() -> None:
    run_isolated(recurse_deeply)
