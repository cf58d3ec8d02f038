"""How restore leaves everything as it was; what others put in front; operators that are gone; what many cost."""

import gc
import json
import time
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

import dutyfree
from accelerated import restored
from isolated import run_isolated
from namespace_of_its_own import X, aten, define, is_fronted, library, namespace, path_of

__all__ = ["library", "namespace", "restored"]  # fixtures, the last for every test here


# --- restore ---------------------------------------------------------------------------------------------------------


def state_of(ops: list[Any]) -> list[Any]:
    gc.collect()  # callables that are gone leave the table
    table: Any = torch.jit._builtins._get_builtin_table()
    names = {str(op).replace(".", "::", 1).split(".")[0] for op in ops}
    return [
        [(id(op._op), dict(vars(op))) for op in ops],
        # Not all of it: entries of what other tests left behind may go at any time.
        {key: name for key, name in table.items() if name in names},
        [cls.__dict__["__call__"] for cls in (OpOverload, OpOverloadPacket, CustomOpDef)],
        torch.library.Library.impl,
    ]


@pytest.mark.parametrize("times", [1, 2])
def test_restore_gives_the_same_objects_back(times: int, library: torch.library.Library, namespace: str) -> None:
    packet = define(library, "op(Tensor x) -> Tensor")

    @torch.library.custom_op(f"{namespace}::custom", mutates_args=())
    def custom(x: Tensor) -> Tensor:
        return x.clone()

    ops = [packet, packet.default, custom._opoverload, aten.add, aten.add.Tensor, aten.add.Scalar, aten.relu.default]
    names = {name for op in ops for name in dir(op)}
    for overload in [name for name in aten.add.overloads() if name not in vars(aten.add)]:
        getattr(aten.add, overload)
    before = state_of(ops)
    for _ in range(times):
        dutyfree.accelerate(aten.add)
        dutyfree.accelerate(namespace)
        dutyfree.accelerate("aten::relu")
    for op in ops:
        assert is_fronted(op)
        if isinstance(op, OpOverload):
            op(*([X, 1] if "add" in op.name() else [X]))
    custom(X)
    assert state_of(ops) != before
    for _ in range(times):
        dutyfree.restore()
    assert state_of(ops) == before
    assert {name for op in ops for name in dir(op)} == names
    assert dutyfree.explain(aten.add, X, X).code == "disabled"
    assert torch.jit._builtins._find_builtin(aten.add._op) == "aten::add"


def test_restore_of_a_part(library: torch.library.Library, namespace: str) -> None:
    one, two = define(library, "one(Tensor x) -> Tensor"), define(library, "two(Tensor x) -> Tensor")
    dutyfree.accelerate(namespace)
    dutyfree.accelerate(aten.add)
    dutyfree.restore(one)
    assert path_of(one, X) == path_of(one.default, X) == "pytorch"
    assert path_of(two, X) == "direct"
    dutyfree.restore(aten.add.Scalar)
    assert path_of(aten.add.Scalar, X, 1) == "pytorch"
    assert path_of(aten.add.Tensor, X, X) == "boxed"
    assert aten.add(X, 1).tolist() == aten.add(X, X).tolist() == [2.0, 2.0]
    dutyfree.restore(namespace)
    assert path_of(two, X) == "pytorch"
    assert path_of(aten.add.Tensor, X, X) == "boxed"
    three = define(library, "three(Tensor x) -> Tensor")
    assert path_of(three, X) == "pytorch"
    dutyfree.accelerate(one)
    assert path_of(one, X) == "direct"
    assert path_of(two, X) == "pytorch"


def test_restore_of_what_was_never_accelerated() -> None:
    before = state_of([aten.relu, aten.relu.default])
    for target in (None, aten.relu, "aten", "no_such_namespace", "aten::no_such_operator", json):
        dutyfree.restore(target)
    assert state_of([aten.relu, aten.relu.default]) == before


def test_fast_custom_op_stays_fast_after_restore(namespace: str) -> None:
    @dutyfree.fast_custom_op(f"{namespace}::op", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x.clone()

    callable_ = op._opoverload._op
    dutyfree.accelerate(op)
    dutyfree.accelerate()
    dutyfree.restore()
    dutyfree.restore(op)
    assert op._opoverload._op is callable_
    dutyfree.reset_stats()
    op(X)
    assert dutyfree.stats()[f"{namespace}::op"].calls["direct"] == 1


@pytest.mark.parametrize("first", ["wrapper", "accelerate"])
def test_what_others_put_in_front_is_called_and_kept(
    first: str, library: torch.library.Library, namespace: str
) -> None:
    overload = define(library, "op(Tensor x) -> Tensor").default
    if first == "accelerate":
        dutyfree.accelerate(namespace)
    wrapped = overload._op
    seen: list[Any] = []

    def theirs(*args: Any, **kwargs: Any) -> Any:
        seen.append(args)
        return wrapped(*args, **kwargs)

    overload._op = theirs
    dutyfree.accelerate(namespace)
    overload(X)
    assert len(seen) == 1
    dutyfree.restore()
    assert overload._op is theirs
    overload(X)
    assert len(seen) == 2


@pytest.mark.parametrize("cls", [OpOverload, OpOverloadPacket, CustomOpDef])
@pytest.mark.parametrize("first", ["patch", "accelerate"])
def test_a_patched_call_is_respected(cls: type, first: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.library.custom_op(f"{namespace}::op", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x.clone()

    seen: list[Any] = []
    original = cls.__call__

    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(self)
        return original(self, *args, **kwargs)

    target = {OpOverload: op._opoverload, OpOverloadPacket: op._opoverload.overloadpacket, CustomOpDef: op}[cls]
    with monkeypatch.context() as patching:
        if first == "patch":
            patching.setattr(cls, "__call__", patched)
        dutyfree.accelerate(namespace)
        if first == "accelerate":
            patching.setattr(cls, "__call__", patched)
        assert torch.equal(target(X), X)
        assert seen == [target]
        dutyfree.restore()
        target(X)
        assert seen == [target, target]
    target(X)
    assert len(seen) == 2
    assert cls.__call__ is original


# --- the life of operators -------------------------------------------------------------------------------------------


def test_a_held_overload_whose_library_dies_raises(library: torch.library.Library, namespace: str) -> None:
    # PyTorch itself reads freed memory here (docs/differences.md), so it is no reference.
    packet = define(library, "op(Tensor x) -> Tensor")
    overload = packet.default
    dutyfree.accelerate(namespace)
    overload(X)
    packet(X)
    library._destroy()
    for op in (overload, packet):
        with pytest.raises(RuntimeError, match=f"{namespace}::op"):
            op(X)
    dutyfree.restore()


def test_a_dead_operator_is_not_kept(namespace: str) -> None:
    library = torch.library.Library(namespace, "FRAGMENT")
    packet = define(library, "op(Tensor x) -> Tensor", lambda x: x.clone())
    dutyfree.accelerate(namespace)
    packet(X)
    packet.default(X)
    references = [weakref.ref(value) for value in (packet, packet.default, packet._op, packet.default._op)]
    library._destroy()
    del library, packet
    gc.collect()
    assert [reference() for reference in references] == [None] * 4
    assert f"{namespace}::op" not in dutyfree.stats()


def test_dead_operators_do_not_gather_while_accelerated(namespace: str) -> None:
    def round_of(number: int) -> None:
        library = torch.library.Library(f"{namespace}_{number}", "FRAGMENT")
        packet = define(library, "op(Tensor x) -> Tensor", lambda x: x.clone())
        references.append(weakref.ref(packet))
        packet(X)
        packet.default(X)
        library._destroy()
        delattr(torch.ops, f"{namespace}_{number}")

    dutyfree.accelerate()
    references: list[Any] = []
    for number in range(20):
        round_of(number)
    gc.collect()
    assert [reference() for reference in references] == [None] * 20


def test_a_redefinition_with_another_schema_while_the_old_overload_is_held() -> None:
    assert run_isolated(redefine).splitlines()[-1] == "done"


def redefine() -> None:
    def outcome(op: Any, *args: Any) -> Any:
        try:
            return op(*args).tolist()
        except Exception as error:
            return type(error).__name__

    # PyTorch itself may read freed memory here (docs/differences.md), so it is no reference.
    name = "redefined"
    first = torch.library.Library(name, "FRAGMENT")
    packet = define(first, "op(Tensor x) -> Tensor", lambda x: x + 1)
    held = packet.default
    dutyfree.accelerate(name)
    held(X)
    packet(X)
    first._destroy()
    second = torch.library.Library(name, "FRAGMENT")
    define(second, "op(Tensor x, int n, Tensor[] more) -> Tensor", lambda x, n, more: x + n)
    for op in (held, packet):  # they call the new operator, or raise
        found = [outcome(op, *args) for args in ((X,), (X, 2, [X]), (X, X), ())]
        assert found == ["RuntimeError", [3.0, 3.0], "RuntimeError", "RuntimeError"], found
    new = getattr(torch.ops, name).op
    assert [outcome(new, X, 2, [X]), outcome(new.default, X, 2, [X])] == [[3.0, 3.0], [3.0, 3.0]]
    second._destroy()
    found = [outcome(op, *args) for op in (held, packet, new) for args in ((X,), (X, 2, [X]))]
    assert set(found) == {"RuntimeError"}, found
    dutyfree.restore()
    print("done")


def test_a_thousand_operators_are_accelerated_in_a_few_times_what_registering_takes(namespace: str) -> None:
    library = torch.library.Library(namespace, "FRAGMENT")
    begin = time.perf_counter()
    packets = [define(library, f"op_{number}(Tensor x) -> Tensor") for number in range(1000)]
    registered = time.perf_counter() - begin
    for packet in packets:
        packet.default  # noqa: B018
    begin = time.perf_counter()
    report = dutyfree.accelerate(namespace)
    accelerated = time.perf_counter() - begin
    assert len(report) == 1000
    assert all(map(is_fronted, packets))
    begin = time.perf_counter()
    dutyfree.restore()
    restoring = time.perf_counter() - begin
    library._destroy()
    assert accelerated < 4 * registered
    assert restoring < 4 * registered


def test_accelerating_again_and_again_costs_no_more_each_time() -> None:
    def seconds(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            dutyfree.accelerate(aten.relu)
            dutyfree.restore(aten.relu)
        return time.perf_counter() - begin

    dutyfree.accelerate(aten.relu)
    early = seconds(20)
    seconds(200)
    assert seconds(20) < 3 * early
