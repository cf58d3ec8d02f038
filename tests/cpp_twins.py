"""Builds and loads the libraries in cpp_operators/, whose operators are defined twice, and compares the two.

A block of operators is in the namespaces ``name_slow``, by PyTorch's own TORCH_LIBRARY and never accelerated, and
``name_fast``, by DUTYFREE_LIBRARY. A test builds the library that it needs; ``python cpp_twins.py`` builds all, as many
at once as there are cores, which is what ``make test`` does first.
"""

import fcntl
import functools
import hashlib
import os
import re
import subprocess
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

import dutyfree
from accelerated import DIRECT, Twins, Way, check, took
from dutyfree.check.outcome import Arguments, Outcome, Side, call, outcome_of

_root = Path(__file__).resolve().parent.parent
_sources = _root / "tests" / "cpp_operators"

_FLAGS = ("-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")

BOXED_FOR_TYPE: Way = ("boxed", "argument-type")


@functools.cache
def library_file(name: str) -> Path:
    """Where the shared library of cpp_operators/<name>.cpp is, built unless these very sources were built before."""
    headers = [*_sources.glob("*.h"), *(_root / "include" / "dutyfree").glob("*.h")]
    digest = hashlib.sha256(f"{torch.__version__} {_FLAGS}".encode())
    for source in (_sources / f"{name}.cpp", *sorted(headers)):
        digest.update(source.read_bytes())
    folder = _root / "build" / "cpp_operators"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{name}-{digest.hexdigest()[:16]}.so"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        errors = "" if library.exists() else _compile(_sources / f"{name}.cpp", library)
    assert not errors, errors
    return library


# Once a process, whatever comes of it.
@functools.cache
def _compile(source: Path, library: Path) -> str:
    includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    unfinished = library.with_suffix(".unfinished")
    command = ["g++", *_FLAGS, f"-I{_root / 'include'}", *(f"-isystem{path}" for path in includes)]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [str(source), "-o", str(unfinished), *(f"-L{path}" for path in cpp_extension.library_paths())]
    command += [f"-l{name}" for name in ("c10", "torch", "torch_cpu", "torch_python")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    if done.returncode != 0:
        return done.stderr
    unfinished.rename(library)
    return ""


@functools.cache
def load(name: str) -> None:
    torch.ops.load_library(os.fspath(library_file(name)))


@dataclass
class Overload(Side):
    """A side that is one overload of several."""

    overload_name: str = ""

    @property
    def qualname(self) -> str:
        return f"{super().qualname}.{self.overload_name}".removesuffix(".")

    @property
    def overload(self) -> Any:
        return getattr(self.packet, self.overload_name or "default")

    def text(self, value: object) -> str:
        """PyTorch lists an operator's kernels with the place of their registration."""
        return re.sub(r"registered (at \S+|by dutyfree/op\.h)", "registered somewhere", super().text(value))


def twins(library: str, name: str) -> Twins:
    """The operator ``name`` (with its overload's, where it has one) of a library, accelerated in one of its blocks."""
    load(library)
    packet_name, _, overload_name = name.partition(".")
    sides = []
    for namespace in (f"cpp{library}_slow", f"cpp{library}_fast"):
        packet = getattr(getattr(torch.ops, namespace), packet_name)
        sides.append(Overload(namespace, packet_name, packet, overload_name=overload_name))
    dutyfree.accelerate(sides[1].namespace)
    assert not dutyfree.stats().keys() & {sides[0].qualname}
    return Twins(*sides)


def alike(library: str, name: str, make: Callable[[], Arguments], way: Way | None = DIRECT) -> Outcome:
    """Calls both twins, by overload and by packet, and asserts that they did the same, by the given way."""
    return check(twins(library, name), make, way)


def both_sides(library: str, name: str, make: Callable[[], Arguments]) -> Outcome:
    """The same by whatever way, which ``explain`` has to foretell."""
    return alike(library, name, make, None)


def alike_overload(
    library: str, name: str, make: Callable[[], Arguments], way: Way, spelling: str = "overload"
) -> Outcome:
    """The same in one spelling, for a call which counts in another overload of the packet than it is made by."""
    both = twins(library, name)
    expected = outcome_of(both.reference, spelling, make())
    with took(both.accelerated, way):
        found = outcome_of(both.accelerated, spelling, make())
    assert found == expected
    return found


__all__ = ["BOXED_FOR_TYPE", "alike", "alike_overload", "both_sides", "call", "library_file", "load", "twins"]


if __name__ == "__main__":
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as several:
        print("built", *several.map(library_file, ("arguments", "behaviour", "later", "results")))
