"""What accelerate's targets cover, what its report says, and operators that are registered later."""

import importlib
import json
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from accelerated import restored
from namespace_of_its_own import X, aten, define, is_fronted, library, namespace, path_of

__all__ = ["library", "namespace", "restored"]  # fixtures, the last for every test here


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


def test_library_impl_may_be_wrapped_by_others_between_two_calls_of_accelerate(
    library: torch.library.Library, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packet = define(library, "op(Tensor x) -> Tensor", lambda x: x + 1)
    with monkeypatch.context() as patched:
        # Undone at the end, whatever stands there then.
        patched.setattr(torch.library.Library, "impl", torch.library.Library.impl)
        dutyfree.accelerate(f"{namespace}::op")
        theirs: Any = torch.library.Library.impl
        seen: list[str] = []

        def wrapper(self: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return theirs(self, name, *args, **kwargs)

        torch.library.Library.impl = wrapper  # type: ignore[method-assign]
        dutyfree.accelerate(namespace)
        library.impl("op", lambda x: x + 2, "CPU", allow_override=True)
        assert seen == ["op"]
        assert packet(X).tolist() == [3.0, 3.0]
        assert path_of(packet, X) == "direct"
        dutyfree.restore()


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
