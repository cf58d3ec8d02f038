"""Accelerated operators of Library.define and Library.impl: exceptions, recursion, threads, their objects."""

import copy
import inspect
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import Library

import dutyfree
from accelerated import (
    KEYS,
    Answering,
    both,
    check,
    doubled,
    library_twins,
    ones,
    ones_with_grad,
    registered_twice,
    restored,
    tripled,
)
from dutyfree.check.outcome import Arguments, Side, call

__all__ = ["restored"]  # a fixture for every test here


class Failure(Exception):
    pass


@pytest.mark.parametrize("key", KEYS)
def test_an_exception_of_the_body_reaches_the_caller_as_it_is(key: str) -> None:
    raised = Failure("no")

    def fails(x: Tensor) -> Tensor:
        raise raised

    twins = library_twins("(Tensor x) -> Tensor", fails, key)
    assert check(twins, ones).raised == ("Failure", "no")
    check(twins, ones_with_grad, None)
    with pytest.raises(Failure) as caught:
        twins.accelerated.overload(torch.ones(2))
    assert caught.value is raised
    assert caught.traceback[-1].name == "fails"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, RecursionError])
def test_other_exceptions_of_the_body(error: type[BaseException]) -> None:
    def fails(x: Tensor) -> Tensor:
        raise error("no")

    twins = library_twins("(Tensor x) -> Tensor", fails, record=False)
    for side in twins.sides():
        with pytest.raises(error, match="no"):
            side.overload(torch.ones(2))
        with pytest.raises(error, match="no"):
            side.overload(torch.ones(2, requires_grad=True))


@pytest.mark.parametrize("key", KEYS)
def test_a_body_may_call_its_own_operator(key: str) -> None:
    namespaces: list[str] = []

    def register(namespace: str) -> Library:
        def recursive(x: Tensor, n: int) -> Tensor:
            return x if n == 0 else getattr(torch.ops, namespace).op(x, n - 1) + 1

        namespaces.append(namespace)
        library = Library(namespace, "FRAGMENT")
        library.define("op(Tensor x, int n) -> Tensor")
        library.impl("op", recursive, key)
        return library

    twins = registered_twice(register)
    assert check(twins, lambda: call(torch.zeros(1), 50)).value["values"] == "[50.0]"
    for side in twins.sides():
        with pytest.raises(RecursionError):
            side.overload(torch.zeros(1), 100_000)
    check(twins, lambda: call(torch.zeros(1), 5))


def test_threads_call_override_and_restore() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, record=False)
    side = twins.accelerated
    failures: list[object] = []
    done = threading.Event()

    def calls() -> None:
        x = torch.ones(2)
        while not done.is_set():
            for spelled in (side.packet, side.overload):
                if (value := spelled(x)[0].item()) not in (2.0, 3.0):
                    failures.append(value)

    threads = [threading.Thread(target=calls) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            library = Library(side.namespace, "IMPL")
            library.impl("op", tripled, "CPU", allow_override=True)
            library._destroy()
            dutyfree.restore(side.qualname)
            dutyfree.accelerate(side.qualname)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    check(twins, ones)


def test_several_overloads_and_their_packet() -> None:
    def register(namespace: str) -> Library:
        library = Library(namespace, "FRAGMENT")
        for overload, schema in (("", "Tensor x"), (".f", "Tensor x, float f"), (".t", "Tensor x, Tensor y")):
            library.define(f"op{overload}({schema}) -> Tensor")
            library.impl(f"op{overload}", lambda x, *rest, overload=overload: torch.full((1,), float(len(overload))))
        library.define("op.s(str s) -> str")
        library.impl("op.s", lambda s: s * 2)
        return library

    twins = registered_twice(register)
    for given in (
        call(torch.ones(1)),
        call(torch.ones(1), 2.5),
        call(torch.ones(1), 2),
        call(torch.ones(1), torch.ones(1)),
        call(torch.ones(1), y=torch.ones(1)),
        call("s"),
        call(),
        call(torch.ones(1), "s"),
        call(torch.ones(1), True),
        call(torch.ones(1), f=torch.tensor(2.0)),
        call(torch.ones(1), torch.ones(1).as_subclass(Answering)),
    ):

        def called(side: Side, given: Arguments = given) -> Any:
            result = side.packet(*given.args, **given.kwargs)
            return result if isinstance(result, (str, tuple)) else result.tolist()

        both(twins, lambda side, called=called: side.text(called(side)))
    names = {name for name in dutyfree.stats() if name.startswith(twins.accelerated.qualname)}
    assert names == {twins.accelerated.qualname + suffix for suffix in ("", ".f", ".t", ".s")}
    assert dutyfree.stats()[f"{twins.accelerated.qualname}.t"].calls["direct"] > 0


def test_the_objects_of_the_operator_stay_what_they_are() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, record=False)
    side = twins.accelerated
    packet, overload = side.packet, side.overload
    accelerated = packet._op, overload._op
    dutyfree.restore(side.qualname)
    pytorch = packet._op, overload._op
    assert (side.packet, side.overload) == (packet, overload)
    dutyfree.accelerate(side.qualname)
    assert packet._op is not accelerated[0]
    assert (side.packet, side.overload) == (packet, overload)
    dutyfree.restore()
    assert (packet._op, overload._op) == pytorch
    assert packet._op is pytorch[0]
    assert overload._op is pytorch[1]
    assert side.qualname not in dutyfree.stats()
    assert dutyfree.explain(overload, torch.ones(2)).path == "pytorch"
    assert overload(torch.ones(2)).tolist() == [2.0, 2.0]


def test_copies_and_descriptions() -> None:
    twins = library_twins("(Tensor x) -> Tensor", doubled, record=False)
    for describe in (str, repr, inspect.signature, pickle.dumps, lambda op: op.__doc__):
        both(twins, lambda side, describe=describe: side.text(describe(side.packet)))
        both(twins, lambda side, describe=describe: side.text(describe(side.overload)))
    side = twins.accelerated
    assert copy.deepcopy(side.overload) is side.overload


def test_an_operator_is_taken_at_its_first_call_where_its_namespace_is_accelerated() -> None:
    namespace = "accelerated_before_it_is_there"
    assert len(dutyfree.accelerate(namespace)) == 0
    library = Library(namespace, "DEF")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", doubled, "CPU")
    op: Any = getattr(torch.ops, namespace).op
    assert op(torch.ones(2)).tolist() == [2.0, 2.0]
    assert op.default(torch.ones(2)).tolist() == [2.0, 2.0]
    assert op(torch.ones(2)).tolist() == [2.0, 2.0]
    assert dutyfree.stats()[f"{namespace}::op"].calls["direct"] >= 2
    library._destroy()
