"""What is registered after a C++ operator was accelerated, what restore and DUTYFREE=off give back, and the end."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import dutyfree
from accelerated import DIRECT, Way, check, restored, took
from cpp_twins import call, library_file, load, twins
from dutyfree.check.outcome import Arguments
from isolated import run_isolated

__all__ = ["restored"]  # a fixture for every test here

LIBRARY = "behaviour"


def x() -> Tensor:
    return torch.arange(1.0, 5.0).reshape(2, 2)


def a_call() -> Arguments:
    return call(x(), 2)


def ninefold(x: Tensor, n: int = 1) -> Tensor:
    return x * 9 * n


@pytest.mark.parametrize(
    ("key", "way"),
    [
        ("CPU", DIRECT),
        ("AutogradCPU", DIRECT),
        ("Autograd", DIRECT),
        ("ADInplaceOrView", DIRECT),
    ],
)
def test_a_python_kernel_counts_from_the_next_call_until_it_is_removed(key: str, way: Way) -> None:
    both = twins(LIBRARY, "cubed")
    before = check(both, a_call, DIRECT)
    remove = both.override(ninefold, key)
    assert check(both, a_call, way).value["values"] == str((x() * 18).tolist())
    remove()
    assert check(both, a_call, DIRECT) == before


@pytest.mark.parametrize("key", ["Python", "AutocastCPU", "CUDA", "SparseCPU"])
def test_a_kernel_under_a_key_that_the_call_does_not_have(key: str) -> None:
    both = twins(LIBRARY, "cubed")
    before = check(both, a_call, DIRECT)
    remove = both.override(ninefold, key)
    assert check(both, a_call, DIRECT) == before
    remove()


def test_an_autocast_rule_in_python_counts_at_once() -> None:
    both = twins(LIBRARY, "cubed")
    with torch.autocast("cpu"):
        before = check(both, a_call, DIRECT)
        remove = both.override(ninefold, "AutocastCPU")
        assert check(both, a_call, None).value["values"] == str((x() * 18).tolist())
        remove()
        assert check(both, a_call, DIRECT) == before


def test_kernels_on_top_of_each_other() -> None:
    both = twins(LIBRARY, "cubed")
    before = check(both, a_call, DIRECT)
    outer: Any = both.override(ninefold, "CPU", allow_override=True)
    inner: Any = both.override(lambda x, n=1: x * 0, "CPU", allow_override=True)
    assert check(both, a_call, None).value["values"] == str((x() * 0).tolist())
    outer()
    assert check(both, a_call, None).value["values"] == str((x() * 0).tolist())
    inner()
    assert check(both, a_call, DIRECT) == before


def test_a_kernel_is_removed_while_it_runs() -> None:
    both = twins(LIBRARY, "cubed")
    removers = []

    def removes_itself(given: Tensor, n: int = 1) -> Tensor:
        removers.pop()()
        return given * 9

    for side in both.sides():
        library = torch.library.Library(side.namespace, "IMPL")
        library.impl("cubed", removes_itself, "CPU")
        removers.append(library._destroy)
        assert side.overload(x()).tolist() == (x() * 9).tolist()
        assert side.overload(x()).tolist() == (x() ** 3).tolist()
    assert dutyfree.stats()[both.accelerated.qualname].calls["direct"] == 2


def another_cpp_library_brings_a_kernel() -> None:
    both = twins(LIBRARY, "cubed")
    cubed = str((x() ** 3 * 2).tolist())
    assert check(both, a_call, DIRECT).value["values"] == cubed
    load("later")
    # A plain kernel, with no direct entry.
    assert check(both, a_call, ("boxed", "kernel")).value["values"] == str([[7.0, 7.0], [7.0, 7.0]])
    with torch.autocast("cpu"):
        assert check(both, a_call, ("boxed", "kernel")).value["values"] == str([[8.0, 8.0], [8.0, 8.0]])


def test_a_kernel_of_a_cpp_library_that_is_loaded_later() -> None:
    library_file("later")
    run_isolated(another_cpp_library_brings_a_kernel)


def accelerated_before_the_library_is_loaded() -> None:
    report = dutyfree.accelerate("cppbehaviour_fast")
    assert len(report) == 0
    load(LIBRARY)
    for op in (torch.ops.cppbehaviour_fast.scaled, torch.ops.cppbehaviour_fast.scaled.default):
        assert op(x(), x()).tolist() == (x() * x() * 2).tolist()
    assert dutyfree.stats()["cppbehaviour_fast::scaled"].calls["direct"] == 2


def test_a_namespace_that_is_accelerated_before_its_library_is_loaded() -> None:
    library_file(LIBRARY)
    run_isolated(accelerated_before_the_library_is_loaded)


def test_the_report_says_direct() -> None:
    load(LIBRARY)
    report = dutyfree.accelerate("cppbehaviour_fast")
    for name in ("scaled", "increment_", "matched", "meet_without_gil"):
        assert report[f"cppbehaviour_fast::{name}"].path == "direct"
    assert report["cppbehaviour_fast::in_python"].path == "boxed"
    assert all(entry.path == "boxed" for entry in dutyfree.accelerate("cppbehaviour_slow"))


def test_restore_gives_everything_back() -> None:
    load(LIBRARY)
    packet = torch.ops.cppbehaviour_fast.scaled
    overload = packet.default
    held = [holder._op for holder in (packet, overload)]
    both = twins(LIBRARY, "scaled")
    assert [holder._op for holder in (packet, overload)] != held
    with took(both.accelerated, DIRECT):
        before = overload(x(), x()).tolist()
    dutyfree.restore("cppbehaviour_fast")
    assert [holder._op for holder in (packet, overload)] == held
    assert both.accelerated.qualname not in dutyfree.stats()
    assert overload(x(), x()).tolist() == before == packet(x(), x()).tolist()


OFF = """
import torch, dutyfree
torch.ops.load_library(LIBRARY)
report = dutyfree.accelerate("cppbehaviour_fast")
assert {entry.path for entry in report} == {"pytorch"} and len(report) > 10, report
x = torch.ones(2)
assert torch.ops.cppbehaviour_fast.scaled(x, x).tolist() == [2.0, 2.0]
y = torch.ones(2, requires_grad=True)
torch.ops.cppbehaviour_fast.scaled.default(y, x).sum().backward()
assert y.grad.tolist() == [2.0, 2.0]
assert torch.ops.cppbehaviour_fast.increment_(x).tolist() == [2.0, 2.0] and x._version == 2, x._version
assert dutyfree.stats() == {}
"""


def ran(source: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", source],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr}"


def test_nothing_is_accelerated_where_dutyfree_is_off() -> None:
    ran(OFF.replace("LIBRARY", repr(str(library_file(LIBRARY)))), DUTYFREE="off")


WITHOUT_DUTYFREE = """
import sys, torch
torch.ops.load_library(LIBRARY)
x = torch.ones(2)
ops = torch.ops.cppbehaviour_fast
assert ops.scaled(x, x).tolist() == [2.0, 2.0]
assert ops.increment_(x).tolist() == [2.0, 2.0] and x._version == 2, x._version
y = torch.ones(2, requires_grad=True)
ops.scaled.default(y, x).sum().backward()
assert y.grad.tolist() == [4.0, 4.0]
assert "dutyfree" not in sys.modules
"""


def test_the_library_works_where_dutyfree_is_not_imported() -> None:
    ran(WITHOUT_DUTYFREE.replace("LIBRARY", repr(str(library_file(LIBRARY)))))


AT_EXIT = """
import torch, dutyfree
torch.ops.load_library(LIBRARY)
dutyfree.accelerate("cppbehaviour_fast")
ops = torch.ops.cppbehaviour_fast
x = torch.ones(2, requires_grad=True)
result = ops.scaled(x, x)
overload = ops.scaled.default
ops.keep(torch.ones(3), [torch.ones(4)])
ops.keep(torch.ones(3), [result])
class Last:
    def __del__(self):
        overload(torch.ones(2), torch.ones(2))
last = Last()
library = torch.library.Library("cppbehaviour_fast", "IMPL")
library.impl("cubed", lambda x, n=1: x, "CPU")
ops.cubed(torch.ones(2))
assert dutyfree.stats()["cppbehaviour_fast::scaled"].calls["autograd"] == 1
calls = dutyfree.stats()["cppbehaviour_fast::keep"].calls
assert calls["direct"] == 1 and calls["boxed"] == 1, calls
ENDING
"""


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "raise SystemExit(0)",
        "dutyfree.restore()",
        "import gc; del ops, overload, last; gc.collect()",
        "import threading; threading.Thread(target=lambda: overload(torch.ones(2), torch.ones(2))).start()",
    ],
)
def test_a_process_that_used_a_library_ends_well(ending: str) -> None:
    ran(AT_EXIT.replace("LIBRARY", repr(str(library_file(LIBRARY)))).replace("ENDING", ending))
