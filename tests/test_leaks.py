"""A million calls leave memory, reference counts and the number of GC objects where they were."""

import gc
import os
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import dutyfree
from parity import Arguments, call, took_by, unique_namespaces

MANY = 1_000_000
FEWER = 10_000  # for calls that cost tens of microseconds
# One leaked object of 16 bytes a call would be 16 MB in a million calls, and one of 100 bytes 2 MB in the fewer ones.
ALLOWED_GROWTH = {MANY: 4 << 20, FEWER: 1 << 20}

RESULT = torch.ones(2)
RESULTS = [torch.ones(1), torch.ones(2)]


def returns_kept(x: Tensor, count: int = 1, factor: float = 0.5, *, mode: str = "a") -> Tensor:
    return RESULT


def clone(x: Tensor) -> Tensor:
    return x.clone()


def takes_lists(tensors: list[Tensor], sizes: list[int], optional: list[Tensor | None]) -> Tensor:
    return RESULT


def takes_everything(
    x: Tensor | None, count: int, factor: float, flag: bool, mode: str, dtype: torch.dtype, device: torch.device
) -> Tensor:
    return RESULT


def returns_list(x: Tensor) -> list[Tensor]:
    return [RESULTS[0], RESULTS[1]]


def returns_kept_list(x: Tensor) -> list[Tensor]:
    return RESULTS


def returns_tuple_for_list(x: Tensor) -> list[Tensor]:
    return tuple(RESULTS)  # type: ignore[return-value]


def returns_several(x: Tensor) -> tuple[Tensor, int, float, bool]:
    return RESULT, 2**40, 1.0, True


def returns_int_for_float(x: Tensor) -> tuple[Tensor, float]:
    return RESULT, 2**40


def mutates(x: Tensor, tensors: list[Tensor]) -> None:
    pass


def raises(x: Tensor) -> Tensor:
    raise ValueError("from the body")


def aliases(x: Tensor) -> Tensor:
    return x


def returns_text(x: Tensor) -> Tensor:
    return "text"  # type: ignore[return-value]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def counts(objects: list[Any]) -> list[int]:
    return [sys.getrefcount(value) for value in objects]


def objects_in(arguments: Arguments) -> list[Any]:
    """What a call could leak a reference to: the arguments, the elements of lists, the keywords' names."""
    found: list[Any] = []
    for value in (*arguments.args, *arguments.kwargs.values()):
        found.append(value)
        if isinstance(value, (list, tuple)):
            found.extend(value)
    return [*found, *arguments.kwargs]


def leaves_everything(
    run: Callable[[], object], repeats: int, watched: list[Any], error: type[Exception] | None = None
) -> None:
    """Runs something many times and asserts that nothing is left behind."""

    def loop(times: int) -> None:
        if error is None:
            for _ in repeat(None, times):
                run()
            return
        for _ in repeat(None, times):
            try:
                run()
            except error:
                continue
            raise AssertionError("did not raise")

    loop(repeats // 10)
    gc.collect()
    before = counts(watched)
    tracked, growths = len(gc.get_objects()), []
    # The allocator of a process that did other things before may take a step at any time; a leak takes one each time.
    while len(growths) < 3 and not (growths and growths[-1] < ALLOWED_GROWTH[repeats]):
        memory = resident_bytes()
        loop(repeats)
        gc.collect()
        growths.append(resident_bytes() - memory)
    # Some are the interpreter's too (the name of a keyword, None), so that a count may change by a few; a leak takes
    # one each time.
    assert all(abs(now - then) < repeats // 100 for now, then in zip(counts(watched), before, strict=True))
    assert len(gc.get_objects()) - tracked < 20
    assert growths[-1] < ALLOWED_GROWTH[repeats], f"{growths} bytes more after {repeats} calls each"


def make(body: Callable[..., Any], **options: Any) -> Any:
    return dutyfree.fast_custom_op(f"{unique_namespaces()[1]}::op", body, **options)


X = torch.ones(2)
DIRECT: dict[str, tuple[Any, Any, Any]] = {
    "one tensor": (returns_kept, {}, lambda: call(torch.ones(2))),
    "a fresh result": (clone, {}, lambda: call(torch.ones(2))),
    "keywords and defaults": (returns_kept, {}, lambda: call(x=torch.ones(2), factor=0.25, mode="largest")),
    "lists": (takes_lists, {}, lambda: call([torch.ones(1)], (2, 3), [None, torch.ones(1)])),
    "every type": (
        takes_everything,
        {},
        lambda: call(None, 2**40, 1.5, True, "text", torch.float64, torch.device("cpu")),
    ),
    "a list returned": (returns_list, {}, lambda: call(torch.ones(2))),
    "several results": (returns_several, {}, lambda: call(torch.ones(2))),
    "mutation": (
        mutates,
        {"mutates_args": {"x", "tensors"}},
        lambda: call(torch.ones(2), [torch.ones(1), torch.ones(1)]),
    ),
}


@pytest.mark.parametrize("kind", DIRECT)
def test_a_million_direct_calls_leave_nothing(kind: str) -> None:
    body, options, arguments = DIRECT[kind]
    op, given = make(body, **options), arguments()
    args, kwargs = given.args, given.kwargs
    with took_by(op):
        leaves_everything(lambda: op(*args, **kwargs), MANY, [*objects_in(given), body, op, RESULT, RESULTS])


@pytest.mark.parametrize("spelling", ["packet", "overload"])
def test_a_million_calls_of_the_other_spellings_leave_nothing(spelling: str) -> None:
    op, x = make(returns_kept), torch.ones(2)
    spelled = op._opoverload if spelling == "overload" else op._opoverload.overloadpacket
    with took_by(op):
        leaves_everything(lambda: spelled(x, mode="b"), MANY, [x, returns_kept, op, spelled])


@pytest.mark.parametrize("body", [returns_kept_list, returns_tuple_for_list, returns_int_for_float])
def test_converted_results_leave_nothing(body: Callable[..., Any]) -> None:
    op, x = make(body), torch.ones(2)
    leaves_everything(lambda: op(x), FEWER, [x, body, RESULT, RESULTS, *RESULTS])


@pytest.mark.parametrize("value", [3, True, 2**40], ids=repr)
def test_converted_values_leave_nothing(value: Any) -> None:
    op, x = make(returns_kept), torch.ones(2)
    leaves_everything(lambda: op(x, 5, value), FEWER, [x, value])


RAISING: dict[str, tuple[Any, Any, type[Exception]]] = {
    "the body raises": (raises, lambda: call(torch.ones(2)), ValueError),
    "the output is an input": (aliases, lambda: call(torch.ones(2)), RuntimeError),
    "the result has the wrong type": (returns_text, lambda: call(torch.ones(2)), RuntimeError),
    "an argument has the wrong type": (returns_kept, lambda: call(torch.ones(2), "text"), RuntimeError),
    "a list has a wrong element": (takes_lists, lambda: call([torch.ones(1)], [1, "a"], [None]), RuntimeError),
    "an argument is missing": (returns_kept, lambda: call(), RuntimeError),
    "a keyword is unknown": (returns_kept, lambda: call(torch.ones(2), nonsense=3), RuntimeError),
    "an argument is given twice": (returns_kept, lambda: call(torch.ones(2), x=torch.ones(2)), RuntimeError),
}


@pytest.mark.parametrize("kind", RAISING)
def test_calls_that_raise_leave_nothing(kind: str) -> None:
    body, arguments, error = RAISING[kind]
    op, given = make(body), arguments()
    args, kwargs = given.args, given.kwargs
    leaves_everything(lambda: op(*args, **kwargs), FEWER, [*objects_in(given), body, op], error)


class PassOn(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_calls_under_a_mode_leave_nothing() -> None:
    op, x = make(returns_kept), torch.ones(2)
    with PassOn():
        leaves_everything(lambda: op(x), FEWER, [x, returns_kept])


def test_calls_that_record_a_gradient_leave_nothing() -> None:
    op, x = make(clone), torch.ones(2, requires_grad=True)
    op.register_autograd(lambda ctx, grad: grad)
    leaves_everything(lambda: op(x), FEWER, [x, clone])
    leaves_everything(lambda: op(x).sum().backward(), FEWER, [x, clone])


def test_calls_with_a_subclass_leave_nothing() -> None:
    class Bare(Tensor):
        pass

    op, x = make(returns_kept), torch.ones(2).as_subclass(Bare)
    leaves_everything(lambda: op(x), FEWER, [x, returns_kept])


def test_explain_and_stats_leave_nothing() -> None:
    op, x = make(returns_kept), torch.ones(2)
    leaves_everything(lambda: dutyfree.explain(op, x, 2, mode="b"), FEWER, [x])
    leaves_everything(lambda: dutyfree.explain(op, "text"), FEWER, [])


def test_registering_kernels_leaves_no_old_ones() -> None:
    op, x = make(returns_kept), torch.ones(2)

    def run() -> None:
        op.register_kernel("cpu", lambda x, count=1, factor=0.5, *, mode="a": RESULT)
        op(x)

    leaves_everything(run, FEWER, [x, returns_kept])


def test_overriding_and_restoring_leaves_nothing() -> None:
    op, x = make(returns_kept), torch.ones(2)

    def run() -> None:
        library = torch.library.Library(op._namespace, "IMPL")
        library.impl("op", lambda x: RESULT, "CPU")
        op(x)
        library._destroy()

    for _ in repeat(None, 200):
        run()
    gc.collect()
    before = counts([x, returns_kept, op])
    for _ in repeat(None, 1000):
        run()
    gc.collect()
    assert counts([x, returns_kept, op]) == before
