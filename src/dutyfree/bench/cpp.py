"""An empty C++ function of three tensors and an int, called from Python in each way there is.

The bindings besides dutyfree's are compiled here as their own documentation says, into dutyfree's cache; nanobind and
tvm-ffi are in the extra ``bench``.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import cpp_extension

from dutyfree.bench.candidates import require_path
from dutyfree.bench.measure import Block, Call, timed_block
from dutyfree.cpp import Operators
from dutyfree.cpp_build import build, default_folder

SOURCES = Path(__file__).parent / "cpp_sources"
CASE, TENSORS = "C++: 3 tensors and an int", "C++: {} tensors and an int"
# Where one more tensor shows: between these.
FEWEST, MOST = 1, 9
DUTYFREE = ["dutyfree.object", "dutyfree.overload"]
BINDINGS = ["pybind11", "tvm_ffi", "nanobind"]
PACKAGES = {"nanobind": "nanobind", "tvm_ffi": "apache-tvm-ffi"}


def three(x: Tensor, y: Tensor, z: Tensor, n: int) -> None:
    """What a call of a Python function costs."""


def call_of(tensors: int) -> Call:
    return Call((*(torch.ones(4) for _ in range(tensors)), 3), {})


def missing() -> list[str]:
    """What is not measured, and why, as sentences."""
    return [
        f"{package} is not installed, so that it is not measured: pip install 'dutyfree[bench]'"
        for module, package in PACKAGES.items()
        if importlib.util.find_spec(module) is None
    ]


@functools.cache
def operators() -> Operators:
    return build("dutyfree_bench_cpp", SOURCES / "operators.cpp")


def candidates() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each way to call the function of three tensors."""
    operator = operators().three
    yield "python", three
    yield from zip(DUTYFREE, (operator, operator._opoverload), strict=True)
    yield "pybind11", _compiled("with_pybind11.cpp").three
    if importlib.util.find_spec("tvm_ffi") is not None:
        import tvm_ffi.cpp

        yield "tvm_ffi", tvm_ffi.cpp.load("dutyfree_bench_tvm_ffi", cpp_files=[str(SOURCES / "with_tvm_ffi.cpp")]).three
    if importlib.util.find_spec("nanobind") is not None:
        nanobind: Any = importlib.import_module("nanobind")  # has no types
        folder = Path(nanobind.__file__).parent
        yield (
            "nanobind",
            _compiled(
                "with_nanobind.cpp",
                folder / "src" / "nb_combined.cpp",
                include_paths=[nanobind.include_dir(), str(folder / "ext" / "robin_map" / "include")],
            ).three,
        )
    yield "torch.ops", torch.ops.dutyfree_bench_torch.three.default


def _compiled(source: str, *more: Path, include_paths: list[str] | None = None) -> Any:
    name = f"dutyfree_bench_{Path(source).stem}"
    folder = default_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    return cpp_extension.load(
        name,
        [str(SOURCES / source), *map(str, more)],
        extra_cflags=["-O2", "-DNDEBUG"],
        extra_include_paths=include_paths,
        build_directory=str(folder),
    )


def blocks() -> dict[tuple[str, str], Block]:
    """What is timed together: all ways to call the function, and dutyfree's with fewer and more tensors."""
    blocks = {}
    call = call_of(3)
    for name, function in candidates():
        if name in DUTYFREE:
            require_path("direct", CASE, name, function, call)
        blocks[CASE, name] = timed_block(function, call)
    for tensors, operator in ((FEWEST, operators().one), (MOST, operators().nine)):
        case, call = TENSORS.format(tensors), call_of(tensors)
        for name, function in zip(DUTYFREE, (operator, operator._opoverload), strict=True):
            require_path("direct", case, name, function, call)
            blocks[case, name] = timed_block(function, call)
    return blocks
