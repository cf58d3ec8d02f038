"""C++ operators beside other threads, and tensors that their kernels keep beyond the call."""

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from accelerated import DIRECT, both, restored, took
from cpp_twins import alike, call, twins
from dutyfree.check.outcome import Side

__all__ = ["restored"]  # a fixture for every test here

LIBRARY = "behaviour"


def x() -> Tensor:
    return torch.arange(1.0, 5.0).reshape(2, 2)


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(functions)

    def run(index: int) -> None:
        results[index] = functions[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# --- tensors kept


def test_a_tensor_that_a_kernel_keeps_outlives_the_call() -> None:
    keep, give_back = twins(LIBRARY, "keep"), twins(LIBRARY, "give_back")
    for index, _ in enumerate(keep.sides()):
        given, listed = x(), [x() + 1, x() + 2]
        keep.sides()[index].overload(given, listed)
        assert give_back.sides()[index].overload()[0] is given
        keep.sides()[index].overload(given, listed)
        del given, listed
        gc.collect()
        kept = give_back.sides()[index].overload()
        assert [tensor.tolist() for tensor in kept] == [x().tolist(), (x() + 1).tolist(), (x() + 2).tolist()]
    assert dutyfree.stats()[keep.accelerated.qualname].calls["direct"] == 2
    assert dutyfree.stats()[give_back.accelerated.qualname].calls["direct"] == 2


def test_a_kept_tensor_keeps_its_python_object() -> None:
    keep, give_back = twins(LIBRARY, "keep"), twins(LIBRARY, "give_back")
    given = x()
    given.mark = "remembered"
    identity, reference = id(given), weakref.ref(given)
    keep.accelerated.overload(given, [])
    del given
    gc.collect()
    assert reference() is not None
    (back,) = give_back.accelerated.overload()
    assert (id(back), back.mark) == (identity, "remembered")
    del back
    gc.collect()
    assert reference() is None
    assert dutyfree.stats()[keep.accelerated.qualname].calls["direct"] == 1


def test_a_result_from_a_global_is_the_same_object() -> None:
    both_ = twins(LIBRARY, "same_from_global")
    given = x()
    for side in both_.sides():
        assert side.overload(given) is given
    assert dutyfree.stats()[both_.accelerated.qualname].calls["direct"] == 1
    alike(LIBRARY, "same_from_global", lambda: call(x()))


# --- the GIL


def test_another_thread_runs_while_a_kernel_that_releases_the_gil_does() -> None:
    both_ = twins(LIBRARY, "meet_without_gil")
    with took(both_.accelerated, DIRECT):
        met = in_threads(*[lambda: both_.accelerated.overload(x(), 5000)] * 2)
    assert met == [2, 2]


def test_python_code_of_another_thread_runs_meanwhile() -> None:
    both_ = twins(LIBRARY, "meet_without_gil")
    steps: list[float] = []

    def count() -> None:
        for _ in range(20):
            steps.append(time.monotonic())
            time.sleep(0.001)

    def meet() -> tuple[float, float]:
        start = time.monotonic()
        both_.accelerated.overload(x(), 300)
        return start, time.monotonic()

    with took(both_.accelerated, DIRECT):
        (start, end), _ = in_threads(meet, count)
    assert sum(start < step < end for step in steps) >= 10


def test_no_other_thread_runs_while_a_kernel_that_keeps_the_gil_does() -> None:
    both_ = twins(LIBRARY, "meet")
    # PyTorch always releases it.
    assert in_threads(*[lambda: both_.reference.overload(x(), 5000)] * 2) == [2, 2]
    with took(both_.accelerated, DIRECT):
        assert in_threads(*[lambda: both_.accelerated.overload(x(), 20)] * 2) == [1, 1]


@pytest.mark.parametrize("name", ["sum_of", "sum_of_without_gil"])
def test_others_replace_the_arguments_meanwhile(name: str) -> None:
    both_ = twins(LIBRARY, name)
    shared: list[Tensor] = [torch.ones(100) for _ in range(30)]
    held = {"y": torch.ones(100), "z": torch.ones(100)}
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            shared[:] = [torch.ones(100) for _ in range(30)]
            held.update(y=torch.ones(100), z=torch.ones(100))

    def sum_up() -> set[float]:
        try:
            return {
                float(value) for _ in range(100) for value in both_.accelerated.overload(shared, held["y"], held["z"])
            }
        finally:
            stop.set()

    with took(both_.accelerated, DIRECT):
        found, _ = in_threads(sum_up, change)
    assert found == {32.0}


@pytest.mark.parametrize("name", ["sum_of", "sum_of_without_gil"])
def test_the_outcome_is_the_same_with_and_without_the_gil(name: str) -> None:
    for make in (
        lambda: call([x(), x()], x(), x()),
        lambda: call((x(),) * 30, x()),
        lambda: call([x()], x(), None),
        lambda: call([x()], z=x(), y=x()),
    ):
        alike(LIBRARY, name, make)


@pytest.mark.parametrize("name", ["sum_of", "sum_of_without_gil"])
def test_no_tensor_stays_behind(name: str) -> None:
    both_ = twins(LIBRARY, name)
    given = [x() for _ in range(33)]
    references = [weakref.ref(tensor) for tensor in given]
    counts = [tensor._use_count() for tensor in given]
    both_.accelerated.overload(given[:31], given[31], given[32])
    assert [tensor._use_count() for tensor in given] == counts
    given.clear()
    assert all(reference() is None for reference in references)
    assert dutyfree.stats()[both_.accelerated.qualname].calls["direct"] == 1


def test_an_operator_is_restored_while_another_thread_is_in_its_kernel() -> None:
    both_ = twins(LIBRARY, "meet_without_gil")
    overload = both_.accelerated.overload

    def restore() -> None:
        time.sleep(0.05)
        dutyfree.restore()
        dutyfree.accelerate("cppbehaviour_fast")

    met, _ = in_threads(lambda: overload(x(), 300), restore)
    assert met == 1
    assert overload(x(), 0) == 1


def test_a_kernel_is_overridden_while_another_thread_is_in_it() -> None:
    both_ = twins(LIBRARY, "meet_without_gil")

    def override() -> int:
        time.sleep(0.05)
        remove = both_.override(lambda x, milliseconds: -1, "CPU")
        found = both_.accelerated.overload(x(), 0)
        remove()
        return int(found)

    with took(both_.accelerated, DIRECT):
        assert in_threads(lambda: both_.accelerated.overload(x(), 300), override) == [1, -1]
        assert both_.accelerated.overload(x(), 0) == 1


@pytest.mark.parametrize("name", ["calls_another", "calls_another_without_gil"])
def test_a_kernel_calls_python_from_several_threads(name: str) -> None:
    remove = twins(LIBRARY, "in_python").override(lambda given: given * 2, "CPU")
    both_ = twins(LIBRARY, name)

    def run(side: Side) -> Any:
        def many() -> set[float]:
            return {float(side.overload(torch.ones(1))) for _ in range(200)}

        return in_threads(*[many] * 3)

    try:
        assert both(both_, run) == [{3.0}] * 3
    finally:
        remove()
    assert dutyfree.stats()[both_.accelerated.qualname].calls["direct"] == 600
