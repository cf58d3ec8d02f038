"""What accelerate's targets cover, what its report says, and how restore leaves everything as it was."""

import gc
import importlib
import json
import os
import subprocess
import sys
import textwrap
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

import dutyfree
from accelerated import restored
from dutyfree import _core
from isolated import run_isolated

__all__ = ["restored"]  # a fixture for every test here

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


# --- targets ---------------------------------------------------------------------------------------------------------


def test_an_overload_is_taken_and_no_other() -> None:
    report = dutyfree.accelerate(aten.add.Tensor)
    assert [entry.name for entry in report] == ["aten::add.Tensor"]
    assert path_of(aten.add.Tensor, X, X) == "boxed"
    assert path_of(aten.add.Scalar, X, 1) == "pytorch"
    assert not is_fronted(aten.mul.Tensor)


def test_a_packet_is_all_its_overloads() -> None:
    report = dutyfree.accelerate(aten.add)
    assert {"aten::add.Tensor", "aten::add.Scalar", "aten::add.out"} <= {entry.name for entry in report}
    assert all(entry.name.split(".")[0] == "aten::add" for entry in report)
    for op, other in ((aten.add, X), (aten.add.Tensor, X), (aten.add.Scalar, 1)):
        assert path_of(op, X, other) == "boxed"
    assert path_of(aten.add_.Tensor, X.clone(), X) == "pytorch"


def test_names() -> None:
    assert [entry.name for entry in dutyfree.accelerate("aten::add.Tensor")] == ["aten::add.Tensor"]
    assert path_of(aten.add.Tensor, X, X) == "boxed"
    assert path_of(aten.add.Scalar, X, 1) == "pytorch"
    dutyfree.restore()
    assert len(dutyfree.accelerate("aten::add")) > 3
    assert path_of(aten.add.Scalar, X, 1) == "boxed"
    assert path_of(aten.addmm, X, torch.ones(2, 2), torch.ones(2, 2)) == "pytorch"


def test_a_namespace_by_name_and_by_object(library: torch.library.Library, namespace: str) -> None:
    packet = define(library, "op(Tensor x) -> Tensor")
    for target in (namespace, getattr(torch.ops, namespace)):
        report = dutyfree.accelerate(target)
        assert [entry.name for entry in report] == [f"{namespace}::op"]
        assert path_of(packet, X) == path_of(packet.default, X) == "direct"
        assert path_of(aten.relu, X) == "pytorch"
        dutyfree.restore()
        assert path_of(packet, X) == "pytorch"


def test_a_namespace_is_not_the_beginning_of_another(namespace: str) -> None:
    library = torch.library.Library(f"{namespace}_longer", "FRAGMENT")
    try:
        packet = define(library, "op(Tensor x) -> Tensor")
        assert len(dutyfree.accelerate(namespace)) == 0
        assert path_of(packet, X) == "pytorch"
    finally:
        library._destroy()


def test_an_operator_is_not_the_beginning_of_another(library: torch.library.Library, namespace: str) -> None:
    define(library, "op(Tensor x) -> Tensor")
    longer = define(library, "op_longer(Tensor x) -> Tensor")
    assert len(dutyfree.accelerate(f"{namespace}::op")) == 1
    assert path_of(longer, X) == "pytorch"


def test_what_custom_op_returned(namespace: str) -> None:
    @torch.library.custom_op(f"{namespace}::op", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x.clone()

    report = dutyfree.accelerate(op)
    assert [(entry.name, entry.path, entry.reason) for entry in report] == [(f"{namespace}::op", "direct", "")]
    assert path_of(op._opoverload, X) == "direct"
    assert dutyfree.explain(op, X).path == "direct"
    dutyfree.reset_stats()
    op(X)
    assert dutyfree.stats()[f"{namespace}::op"].calls["direct"] == 1


def test_everything(library: torch.library.Library, namespace: str) -> None:
    packet = define(library, "op(Tensor x) -> Tensor")
    report = dutyfree.accelerate()
    assert len(report) > 3000
    assert {f"{namespace}::op", "aten::add.Tensor"} <= set(report.names)
    assert path_of(packet, X) == "direct"
    assert path_of(aten.relu, X) == "boxed"


@pytest.mark.parametrize("target", [7, 2.5, [], ["aten"], X, torch.relu, lambda x: x, int, b"aten"])
def test_anything_else_is_refused(target: Any) -> None:
    for function in (dutyfree.accelerate, dutyfree.restore):
        with pytest.raises(TypeError, match="expected an operator"):
            function(target)


def test_unknown_names_cover_nothing_yet(namespace: str) -> None:
    for target in (namespace, f"{namespace}::op", f"{namespace}::op.overload", "", "::", "aten::no_such_operator"):
        report = dutyfree.accelerate(target)
        assert (len(report), list(report)) == (0, [])
        assert "0 operators" in str(report)
        dutyfree.restore(target)


def test_a_module_is_the_operators_that_its_package_defines(
    tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / f"package_{namespace}"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("from . import registers\nfrom .inner import bodies\n")
    (package / "registers.py").write_text(
        textwrap.dedent(f"""
        import torch
        library = torch.library.Library("{namespace}", "FRAGMENT")
        library.define("defined(Tensor x) -> Tensor")
        library.impl("defined", lambda x: x + 1, "CPU")
        """)
    )
    (package / "inner" / "__init__.py").write_text("")
    (package / "inner" / "bodies.py").write_text(
        textwrap.dedent(f"""
        import torch
        @torch.library.custom_op("{namespace}::custom", mutates_args=())
        def custom(x: torch.Tensor) -> torch.Tensor:
            return x + 2
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(package.name)
    elsewhere = torch.library.Library(namespace, "FRAGMENT")
    other = define(elsewhere, "elsewhere(Tensor x) -> Tensor")
    report = dutyfree.accelerate(module)
    assert sorted(report.names) == [f"{namespace}::custom", f"{namespace}::defined"]
    ops = getattr(torch.ops, namespace)
    assert path_of(ops.defined, X) == path_of(ops.custom, X) == "direct"
    assert path_of(other, X) == "pytorch"
    assert path_of(aten.relu, X) == "pytorch"
    # One module of it, with what it registers later.
    dutyfree.restore()
    assert dutyfree.accelerate(module.registers).names == [f"{namespace}::defined"]
    module.registers.library.define("later(Tensor x) -> Tensor")
    exec(compile('library.impl("later", lambda x: x, "CPU")', "later", "exec"), vars(module.registers))
    assert path_of(ops.later, X) == "direct"
    dutyfree.restore(module)
    assert path_of(ops.defined, X) == "pytorch"
    elsewhere._destroy()
    module.registers.library._destroy()


def test_a_module_without_operators() -> None:
    assert len(dutyfree.accelerate(types.ModuleType("no_such_package"))) == 0
    assert len(dutyfree.accelerate(json)) == 0
    assert len(dutyfree.accelerate(sys)) == 0


# --- the report ------------------------------------------------------------------------------------------------------


def test_the_report_tells_each_operators_way(library: torch.library.Library, namespace: str) -> None:
    define(library, "direct(Tensor x) -> Tensor")
    library.define("keyed(Tensor x) -> Tensor")
    library.impl("keyed", lambda keyset, x: x, "CPU", with_keyset=True)
    library.define("bodiless(Tensor x) -> Tensor")
    report = dutyfree.accelerate(namespace)
    assert len(report) == 3
    assert [entry.name for entry in report] == report.names == sorted(report.names)
    found = {entry.name: entry.path for entry in report}
    assert found == {
        f"{namespace}::direct": "direct",
        f"{namespace}::keyed": "boxed",
        f"{namespace}::bodiless": "boxed",
    }
    for entry in report:
        assert report[entry.name] == entry
        assert entry.name in report
        assert (entry.reason == "") == (entry.path == "direct")
        assert entry.name in str(report)
        assert entry.reason in str(report)
    assert str(report).startswith("3 operators: 1 direct, 2 boxed")
    assert dutyfree.accelerate(aten.relu)["aten::relu"].reason == "its kernels are C++"
    with pytest.raises(KeyError, match="relu"):
        report["aten::relu"]
    assert "aten::relu" not in report


def test_what_the_report_calls_direct_or_boxed_is_what_an_ordinary_call_takes(
    library: torch.library.Library, namespace: str
) -> None:
    define(library, "one(Tensor x) -> Tensor")
    define(library, "two(Tensor x, int n=1) -> Tensor", lambda x, n=1: x + n)
    define(library, "scalar(Tensor x, Scalar s=1) -> Tensor", lambda x, s=1: x + s)
    define(library, "strings(Tensor x, str[]? s=None) -> Tensor", lambda x, s=None: x + 1)
    define(library, "listed(Tensor x) -> Tensor[]", lambda x: [x.clone()])
    define(library, "inplace(Tensor(a!) x) -> Tensor(a!)", lambda x: x.add_(1))
    for entry in dutyfree.accelerate(namespace):
        packet = getattr(getattr(torch.ops, namespace), entry.name.split("::")[1])
        assert path_of(packet, torch.ones(2)) == entry.path, entry


# --- later registrations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["everything", "namespace", "operator"])
def test_operators_registered_later_are_taken_at_their_first_call(kind: str, namespace: str) -> None:
    dutyfree.accelerate({"everything": None, "namespace": namespace, "operator": f"{namespace}::op"}[kind])
    library = torch.library.Library(namespace, "FRAGMENT")
    try:
        packet = define(library, "op(Tensor x) -> Tensor")
        packet(X)
        packet.default(X)
        counted = dutyfree.stats()[f"{namespace}::op"].calls
        assert counted["direct"] == 2
    finally:
        library._destroy()


def test_a_custom_op_made_later_is_taken(namespace: str) -> None:
    dutyfree.accelerate(namespace)

    @torch.library.custom_op(f"{namespace}::op", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x.clone()

    op(X)
    op(X)
    assert dutyfree.stats()[f"{namespace}::op"].calls["direct"] == 2


def test_a_kernel_registered_later_is_read_at_once(library: torch.library.Library, namespace: str) -> None:
    packet = define(library, "op(Tensor x) -> Tensor", lambda x: x + 1)
    dutyfree.accelerate(namespace)
    assert packet(X).tolist() == [2.0, 2.0]
    library.impl("op", lambda x: x + 2, "CPU", allow_override=True)
    assert packet(X).tolist() == packet.default(X).tolist() == [3.0, 3.0]
    assert path_of(packet, X) == "direct"
    library.define("bodiless(Tensor x) -> Tensor")
    bodiless = getattr(torch.ops, namespace).bodiless
    with pytest.raises(NotImplementedError):
        bodiless(X)
    library.impl("bodiless", lambda x: x + 3, "CPU")
    assert bodiless(X).tolist() == [4.0, 4.0]
    assert path_of(bodiless, X) == "direct"


def test_a_packet_refreshed_by_a_new_overload(library: torch.library.Library, namespace: str) -> None:
    packet = define(library, "op(Tensor x) -> Tensor", lambda x: x + 1)
    dutyfree.accelerate(namespace)
    assert packet(X).tolist() == [2.0, 2.0]
    held = packet.default
    define(library, "op.number(Tensor x, int n) -> Tensor", lambda x, n: x + n)
    assert packet is getattr(torch.ops, namespace).op
    assert (packet(X).tolist(), packet(X, 5).tolist()) == ([2.0, 2.0], [6.0, 6.0])
    assert packet.number(X, 6).tolist() == [7.0, 7.0]
    assert packet.default is held
    assert sorted(packet.overloads()) == ["default", "number"]
    assert path_of(packet.number, X, 6) == path_of(packet.default, X) == "direct"
    dutyfree.restore()
    assert not any(map(is_fronted, (packet, packet.default, packet.number)))
    assert (packet(X).tolist(), packet(X, 5).tolist()) == ([2.0, 2.0], [6.0, 6.0])


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


# --- the environment -------------------------------------------------------------------------------------------------


def in_a_process(source: str, *command: str, **environment: str) -> dict[str, Any]:
    """Runs a program that prints one line of JSON at its end."""
    finished = subprocess.run(
        [sys.executable, "-X", "faulthandler", *(command or ("-c", textwrap.dedent(source)))],
        env={**{key: value for key, value in os.environ.items() if not key.startswith("DUTYFREE")}, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


PROGRAM = """
import json, sys
import torch
library = torch.library.Library("program", "FRAGMENT")
library.define("op(Tensor x) -> Tensor")
library.impl("op", lambda x: x + 1, "CPU")
x = torch.ones(2)
values = [torch.ops.program.op(x).tolist(), torch.ops.aten.relu(x).tolist()]
import dutyfree
stats = dutyfree.stats()
paths = {name: [path for path, count in stats[name].calls.items() if count] if name in stats else []
         for name in ("program::op", "aten::relu")}
print(json.dumps({"values": values, "paths": paths, "argv": sys.argv[1:], "main": __name__}))
"""
TAKEN = {"program::op": ["direct"], "aten::relu": ["boxed"]}
NOT_TAKEN: dict[str, list[str]] = {"program::op": [], "aten::relu": []}


def test_dutyfree_off_accelerates_nothing() -> None:
    found = in_a_process(
        """
        import json, torch, dutyfree
        relu, before = torch.ops.aten.relu, torch.ops.aten.relu._op
        report = dutyfree.accelerate(relu.default)
        entry = report["aten::relu"]
        relu(torch.ones(2))
        print(json.dumps([entry.path, entry.reason, len(report), relu._op is before, len(dutyfree.stats()),
                          str(report), dutyfree.explain(relu, torch.ones(2)).path]))
        """,
        DUTYFREE="off",
    )
    assert found[:5] == ["pytorch", "DUTYFREE=off", 2, True, 0]  # type: ignore[index]
    assert "DUTYFREE=off" in found[5]  # type: ignore[index]
    assert found[6] == "pytorch"  # type: ignore[index]


def test_dutyfree_audit_finds_an_operator_that_lies() -> None:
    found = in_a_process(
        """
        import json, torch, dutyfree
        calls = []
        library = torch.library.Library("program", "FRAGMENT")
        for name, body in {
            "honest": lambda x: x + 1,
            "writes": lambda x: x.add_(1).clone(),
            "differs": lambda x: x + len(calls) + (calls.append(1) or 0),
            "random": lambda x: torch.rand_like(x),
            "raises": lambda x: (_ for _ in ()).throw(ValueError("from the body")),
        }.items():
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, body, "CPU")
        dutyfree.accelerate("program")
        dutyfree.accelerate("aten")
        results = {}
        for name in ("honest", "writes", "differs", "random", "raises"):
            for op in (getattr(torch.ops.program, name), getattr(torch.ops.program, name).default):
                try:
                    op(torch.ones(2)); text = "fine"
                except Exception as error:
                    text = f"{type(error).__name__}: {error}"
                results.setdefault(name, []).append(text)
        x = torch.ones(2)
        aten = [torch.ops.aten.add(x, 1).tolist(), torch.ops.aten.add_.Tensor(x, 1) is x, torch.rand(2).shape[0]]
        print(json.dumps([results, aten]))
        """,
        DUTYFREE="audit",
    )
    results, aten_results = found
    assert results["honest"] == results["random"] == ["fine", "fine"]  # type: ignore[index]
    assert all("AuditError" in text and "wrote" in text for text in results["writes"])  # type: ignore[index]
    assert all("AuditError" in text and "differs" in text for text in results["differs"])  # type: ignore[index]
    assert results["raises"] == ["ValueError: from the body"] * 2  # type: ignore[index]
    assert aten_results == [[2.0, 2.0], True, 2]


def test_dutyfree_auto_needs_no_change_to_the_program(tmp_path: Path) -> None:
    source = Path(dutyfree.__file__).parent.parent
    hook = tmp_path / "sitecustomize.py"  # runs the hook's line where an installed .pth would
    hook.write_text((source / "dutyfree_auto.pth").read_text())
    path = os.pathsep.join([str(tmp_path), str(source)])
    assert in_a_process(PROGRAM, DUTYFREE_AUTO="1", PYTHONPATH=path)["paths"] == TAKEN
    assert in_a_process(PROGRAM, DUTYFREE_AUTO="0", PYTHONPATH=path)["paths"] == NOT_TAKEN
    assert in_a_process(PROGRAM, DUTYFREE_AUTO="1", DUTYFREE="off", PYTHONPATH=path)["paths"] == NOT_TAKEN
    without_torch = (
        "import sys, json; print(json.dumps({'torch': 'torch' in sys.modules, 'ours': 'dutyfree' in sys.modules}))"
    )
    assert in_a_process(without_torch, DUTYFREE_AUTO="1", PYTHONPATH=path) == {"torch": False, "ours": False}


def test_dutyfree_run_runs_a_script_and_a_module(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    run = ("-c", "from dutyfree.cli import app; app()", "run")
    script = in_a_process("", *run, str(tmp_path / "program.py"), "a", "--stats", "-m")
    assert script["paths"] == TAKEN
    assert script["argv"] == ["a", "--stats", "-m"]
    assert script["main"] == "__main__"
    module = in_a_process("", *run, "-m", "program", "a", "--b", PYTHONPATH=str(tmp_path))
    assert module["paths"] == TAKEN
    assert module["argv"] == ["a", "--b"]
    assert module["main"] == "__main__"
    assert script["values"] == module["values"] == [[2.0, 2.0], [1.0, 1.0]]
