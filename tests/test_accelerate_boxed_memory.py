"""Calls that accelerate boxes: the interpreter lock, threads, and what becomes of the memory."""

import contextlib
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import dutyfree
from accelerated import restored
from boxed_alike import aten, grad, numbered, operator, t, took
from dutyfree.check.outcome import Arguments, call
from isolated import run_isolated

__all__ = ["restored"]  # a fixture for every test here


class PassingOn(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_other_threads_run_while_a_kernel_runs() -> None:
    started = threading.Event()
    ticks: list[float] = []

    def tick() -> None:
        started.set()
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    done = threading.Event()
    dutyfree.accelerate("aten")
    x = torch.ones(1500, 1500, dtype=torch.float64)
    thread = threading.Thread(target=tick)
    thread.start()
    started.wait()
    try:
        begin = time.perf_counter()
        aten.linalg_matrix_exp.default(x * 1e-3)
        end = time.perf_counter()
    finally:
        done.set()
        thread.join()
    took(aten.linalg_matrix_exp, "boxed")
    within = [moment for moment in ticks if begin < moment < end]
    assert len(within) > (end - begin) / 0.05


def test_threads_call_boxed_operators_at_once() -> None:
    dutyfree.accelerate("aten")
    failures: list[Any] = []

    def work(number: int) -> None:
        try:
            for index in range(300):
                tensors = [torch.full((1 + number,), float(index)), torch.full((2,), float(number))]
                result = aten.cat.default(tensors)
                assert result.tolist() == [float(index)] * (1 + number) + [float(number)] * 2
                if index % 3 == 0:
                    with PassingOn():
                        aten.cat.default(tensors[:1])
                if index % 5 == 0:
                    with pytest.raises(RuntimeError, match="Sizes of tensors"):
                        aten.cat.default([t(2, 2), t(3, 3)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_accelerate_and_restore_while_other_threads_call() -> None:
    assert run_isolated(accelerate_beside_calls).split() == ["done"]


def accelerate_beside_calls() -> None:
    failures: list[Any] = []
    done = threading.Event()
    originals = [op._op for op in (aten.cat, aten.cat.default, aten.add, aten.add.Tensor)]

    def work() -> None:
        try:
            while not done.is_set():
                assert aten.cat.default([t(1), t(1)]).tolist() == [1.0, 1.0]
                assert aten.add(t(1), 1).tolist() == [2.0]
        except BaseException as error:
            failures.append(error)

    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        for op in (aten.cat, aten.add):
            dutyfree.accelerate(op)
        dutyfree.restore()
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    dutyfree.restore()
    assert [op._op for op in (aten.cat, aten.cat.default, aten.add, aten.add.Tensor)] == originals
    print("done")


def test_first_calls_from_several_threads_put_one_callable_in_front() -> None:
    assert run_isolated(first_calls_at_once).split() == ["done"]


def first_calls_at_once() -> None:
    sys.setswitchinterval(1e-6)
    x = t(2)
    library = torch.library.Library("first_calls", "FRAGMENT")
    dutyfree.accelerate("first_calls")
    ops = []
    for number in range(300):
        library.define(f"op_{number}(Tensor x) -> Tensor")
        library.impl(f"op_{number}", torch.clone, "CPU")
        packet = getattr(torch.ops.first_calls, f"op_{number}")
        ops += [(packet, packet._op), (packet.default, packet.default._op)]
        start = threading.Barrier(6)

        def work(packet: Any = packet, start: Any = start) -> None:
            start.wait()
            packet(x)
            packet.default(x)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [op._op.pytorch is plain for op, plain in ops].count(False) == 0
    dutyfree.restore()
    assert [op._op is plain for op, plain in ops].count(False) == 0
    print("done")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


LEAKS: list[tuple[str, Callable[[], Arguments]]] = [
    ("aten.add.Tensor", lambda: call(t(2), 1, alpha=2)),
    ("aten.cat.default", lambda: call([t(2), t(2)], dim=0)),
    ("aten.cat.default", lambda: call([t(2), t(2, 2)])),
    ("aten.cat.default", lambda: call([t(2), None])),
    ("aten.index.Tensor", lambda: call(t(2), [torch.tensor([0])])),
    ("aten.index.Tensor", lambda: call(t(2), [None, 1])),
    ("aten.view.default", lambda: call(t(2), [1, 2])),
    ("aten.view.default", lambda: call(t(2), [1, "text"])),
    ("aten.relu.default", lambda: call(t(2), unknown=1)),
    ("aten.unbind.int", lambda: call(t(2, 2))),
    ("aten.max.dim", lambda: call(t(2, 2), 1)),
    ("aten.einsum.default", lambda: call("i->", [t(2)])),
    ("aten.ones.default", lambda: call([2], device="cpu", dtype=torch.float64)),
    ("aten.add_.Tensor", lambda: call(t(2), t(2))),
    ("aten.mul.Tensor", lambda: call(grad(2), grad(2))),
    ("aten._foreach_add.ScalarList", lambda: call([t(2)], [1.5])),
]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Waking a second one for two elements takes a hundred times as long as the rest of a call."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@numbered(LEAKS)
def test_nothing_leaks(name: str, make: Callable[[], Arguments]) -> None:
    op = operator(name)
    dutyfree.accelerate(op)
    arguments = make()
    values = [*arguments.args, *arguments.kwargs.values()]
    values += [item for value in values if isinstance(value, list) for item in value]
    values = [value for value in values if isinstance(value, (Tensor, list))]

    def run(count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(Exception):
                op(*arguments.args, **arguments.kwargs)

    run(2_000)
    counts = [sys.getrefcount(value) for value in values]
    uses = [value._use_count() for value in values if isinstance(value, Tensor)]
    before = resident()
    run(10_000)
    assert [sys.getrefcount(value) for value in values] == counts
    assert [value._use_count() for value in values if isinstance(value, Tensor)] == uses
    # Sixteen bytes a call would be 160 kB; the allocator's own blocks are larger than that.
    assert resident() - before < 1_000_000


def refused(*args: Any) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        aten.cat.default(*args)


def test_tensors_given_are_not_kept_alive() -> None:
    dutyfree.accelerate("aten")
    for make in (
        lambda x: aten.cat.default([x, x]),
        lambda x: aten.cat.default(tensors=(x, x)),
        lambda x: aten.add.Tensor(x, x),
        lambda x: aten.index.Tensor(x, [torch.tensor([0])]),
        lambda x: aten._foreach_add.List([x], [x]),
        lambda x: refused([x, t(2, 2)]),
        lambda x: refused([x, None]),
        lambda x: refused([x], 7.5),
        lambda x: refused([x], 7),
    ):
        x = t(2)
        storage = x.untyped_storage()
        owners = storage._use_count() if hasattr(storage, "_use_count") else 0
        reference, implementation = weakref.ref(x), x._use_count()
        make(x)
        gc.collect()
        assert x._use_count() == implementation
        assert (storage._use_count() if hasattr(storage, "_use_count") else 0) == owners
        del x
        gc.collect()
        assert reference() is None


def test_a_list_that_a_kernel_kept_is_not_used_again() -> None:
    kept: list[Any] = []

    class Keeping(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kept.append(args[0])
            return func(*args, **(kwargs or {}))

    dutyfree.accelerate("aten")
    tensors = [t(1), t(2)]
    with Keeping():
        aten.cat.default(tensors)
    for _ in range(3):
        aten.cat.default([t(5)])
    assert [len(x) for x in kept[0]] == [1, 2]
    x = grad(2)
    y = aten.stack.default([x, x])
    aten.stack.default([t(2), t(2)])
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_list_that_changes_while_a_subclass_is_asked() -> None:
    class Changing(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tensors.clear()
            return "answered"

    dutyfree.accelerate("aten")
    tensors = [t(2), t(2).as_subclass(Changing), t(2)]
    assert aten.cat.default(tensors) == "answered"
    assert aten.cat.default([t(1)]).tolist() == [1.0]
