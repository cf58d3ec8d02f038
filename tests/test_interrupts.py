"""Interrupts and exceptions at awkward moments of a call: the thread's state is restored, nothing is left behind."""

import _thread
import functools
import gc
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from isolated import run_isolated
from parity import SPELLINGS, pair_of, thread_state, took, unique_namespaces


class OwnError(BaseException):
    """One that no `except Exception` sees."""


def raised_by(run: Callable[[], object]) -> tuple[type[BaseException], list[str]]:
    """What a call raises, and the functions of this file that its traceback shows."""
    try:
        run()
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        return type(error), [frame.name for frame in frames if frame.filename == __file__]
    raise AssertionError("did not raise")


def own_error() -> None:
    raise OwnError


def signalled() -> None:
    signal.raise_signal(signal.SIGINT)
    time.sleep(1)  # the handler runs before this ends


def interrupted() -> None:
    _thread.interrupt_main()
    time.sleep(1)


@pytest.fixture
def python_handles_interrupts() -> Iterator[None]:
    """As it does by default, but not where the tests run in a shell's background: SIGINT is ignored there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_interrupts")
@pytest.mark.parametrize("cause", [own_error, signalled, interrupted])
@pytest.mark.parametrize("where", ["body", "kernel"])
def test_an_interrupt_in_the_body_leaves_the_call_as_in_pytorch(cause: Callable[[], None], where: str) -> None:
    def interrupted_body(x: Tensor, tensors: list[Tensor]) -> Tensor:
        cause()
        return x.clone()

    def sound_body(x: Tensor, tensors: list[Tensor]) -> Tensor:
        return x.clone()

    x, tensors = torch.ones(2), [torch.ones(1)]
    pair = pair_of(interrupted_body if where == "body" else sound_body, record=False)
    if where == "kernel":
        pair.each(lambda op: op.register_kernel("cpu", interrupted_body))
    before = thread_state()
    for spelling in SPELLINGS:
        spelled = [side.spelled(spelling) for side in pair.sides()]
        seen = [raised_by(functools.partial(op, x, tensors)) for op in spelled]
        assert seen[1] == seen[0]
        assert "interrupted_body" in seen[1][1]
        assert thread_state() == before
    gc.collect()
    counts = sys.getrefcount(x), sys.getrefcount(tensors), sys.getrefcount(tensors[0])
    with took(pair.fast):
        if cause is own_error:  # the others take a second each
            for _ in range(20):
                raised_by(lambda: pair.fast.op(x, tensors))
        pair.fast.op.register_kernel("cpu", sound_body)
        assert pair.fast.op(x, tensors).tolist() == [1.0, 1.0]
    assert (sys.getrefcount(x), sys.getrefcount(tensors), sys.getrefcount(tensors[0])) == counts


def interrupt_at_any_moment() -> None:
    def body(x: Tensor, tensors: list[Tensor], factor: float = 1.0) -> list[Tensor]:
        return [x.clone(), *(tensor.clone() for tensor in tensors)]

    op = dutyfree.fast_custom_op(f"{unique_namespaces()[1]}::op", body)
    x, tensors = torch.ones(2), [torch.ones(1), torch.ones(1)]

    def interrupt(number: int, frame: object) -> None:
        raise OwnError

    signal.signal(signal.SIGALRM, interrupt)
    op(x, tensors)  # from here on the operator holds its body
    before = thread_state()
    counts = [sys.getrefcount(value) for value in (x, tensors, *tensors, body)]
    interrupts = 0
    while interrupts < 500:
        try:
            # Some microseconds, so that the signal comes at another point of the loop each time.
            signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + interrupts % 40))
            while True:
                op(x, tensors, 3)  # type: ignore[arg-type]
        except OwnError:
            interrupts += 1
        assert thread_state() == before
    assert dutyfree.explain(op, x, tensors).path == "direct"
    assert [sys.getrefcount(value) for value in (x, tensors, *tensors, body)] == counts


def test_an_interrupt_at_any_moment_leaves_nothing_behind() -> None:
    run_isolated(interrupt_at_any_moment)


def test_a_finaliser_of_a_list_element_runs_when_the_call_lets_go_of_it_and_keeps_the_bodys_exception() -> None:
    class Finalised:
        def __del__(self) -> None:
            states.append(thread_state())
            states.append(inner(torch.ones(1)).tolist())
            raise OwnError

    def body(tensors: list[Tensor], fail: bool) -> Tensor:
        given.clear()  # the call's own list is the last to hold the tensor
        assert not states
        if fail:
            raise KeyError("from the body")
        return torch.ones(1)

    def inner_body(x: Tensor) -> Tensor:
        return x + 1

    namespace = unique_namespaces()[1]
    inner = dutyfree.fast_custom_op(f"{namespace}::inner", inner_body)
    op = dutyfree.fast_custom_op(f"{namespace}::op", body)
    given: list[Tensor] = []
    unraisable: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda seen: unraisable.append(seen.exc_type)
    try:
        for fail in (False, True):
            states: list[Any] = []
            before = thread_state()
            tensor = torch.ones(1)
            tensor.finalised = Finalised()  # type: ignore[attr-defined]
            given.append(tensor)
            del tensor
            if fail:
                with pytest.raises(KeyError, match="from the body") as error:
                    op(given, fail)
                # The traceback holds the body's frame, and that its list.
                error.value.__traceback__ = None
                del error
                gc.collect()
            else:
                assert op(given, fail).tolist() == [1.0]
            assert states == [before, [2.0]]
            assert thread_state() == before
    finally:
        sys.unraisablehook = hook
    assert unraisable == [OwnError, OwnError]


class Name(str):
    """A keyword that is no exact str, and whose hash and comparison fail once told to."""

    armed = False

    def __hash__(self) -> int:
        if Name.armed:
            raise OwnError
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        if Name.armed:
            raise OwnError
        return super().__eq__(other)


@pytest.mark.parametrize(
    ("name", "armed"),
    # PyTorch hashes a known name, and so raises what its hash does. A call that needs no hash is not worse for it.
    [("factor", False), ("nonsense", False), ("nonsense", True)],
)
def test_a_keyword_of_a_str_subclass_means_what_it_does_in_pytorch(name: str, armed: bool) -> None:
    def scale(x: Tensor, factor: float = 1.0) -> Tensor:
        return x * factor

    pair = pair_of(scale, record=False)
    seen: list[Any] = []
    for side in pair.sides():
        keywords: dict[str, Any] = {Name(name): 3.0}
        Name.armed = armed
        try:
            seen.append(side.op(torch.ones(2), **keywords).tolist())
        except BaseException as error:
            seen.append((type(error), side.text(error)))
        finally:
            Name.armed = False
    assert seen[1] == seen[0]
