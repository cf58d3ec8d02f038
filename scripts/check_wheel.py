"""Checks that the dutyfree of this Python is an installed wheel's, that it has the files that libraries of operators
are built with, and that an operator works."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

import dutyfree


@dutyfree.fast_custom_op("wheel_check::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


package = Path(dutyfree.__file__).parent
assert package.parent == Path(sysconfig.get_paths()["platlib"]), f"imported from {package}"
assert (package / "py.typed").exists()
assert (package.parent / "dutyfree_auto.pth").exists()  # DUTYFREE_AUTO=1
include, cmake = Path(dutyfree.get_include()), Path(dutyfree.cmake_dir())
assert {include.parent, cmake.parent} == {package}, f"{include}, {cmake}"
headers = Path(__file__).parents[1] / "include" / "dutyfree"
assert {path.name for path in (include / "dutyfree").iterdir()} == {path.name for path in headers.glob("*.h")}
assert (include / "dutyfree" / "op.h").exists()
assert {path.name for path in cmake.iterdir()} >= {"dutyfreeConfig.cmake", "query_torch.py"}
# Built for the checkout, it is in the wheel too: both look for nvcc in the same places.
cuda_library = "libdutyfree_nvfp4_cuda.so"
assert (package / cuda_library).exists() == (headers.parents[1] / "src" / "dutyfree" / cuda_library).exists()
assert double(torch.ones(2)).tolist() == [2.0, 2.0]
assert dutyfree.explain(double, torch.ones(2)).path == "direct"
print(f"{package}: an operator is called directly")
