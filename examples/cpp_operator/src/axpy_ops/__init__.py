"""An operator in C++: ``axpy(x, y, a=1.0)``."""

from pathlib import Path

import dutyfree

axpy = dutyfree.load_library(Path(__file__).parent / "axpy_ops.so").axpy

__all__ = ["axpy"]
