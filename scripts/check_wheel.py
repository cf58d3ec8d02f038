"""Checks that the dutyfree of this Python is an installed wheel's, and that an operator works."""

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
assert double(torch.ones(2)).tolist() == [2.0, 2.0]
assert dutyfree.explain(double, torch.ones(2)).path == "direct"
print(f"{package}: an operator is called directly")
