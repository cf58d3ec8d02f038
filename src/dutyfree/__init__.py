"""Custom operators for PyTorch without the dispatcher tax."""

from dutyfree import _compatibility  # isort: skip  (first: it says what is wrong where the core would only crash)
from dutyfree.accelerate import Entry, Report, accelerate, restore
from dutyfree.autotune import AutoTuner, autotune
from dutyfree.cpp import CppOp, Operators, load_library
from dutyfree.cpp_build import build
from dutyfree.cpp_paths import cmake_dir, get_include
from dutyfree.custom_op import CustomOp, fast_custom_op
from dutyfree.errors import AuditError
from dutyfree.explain import OperatorStats, Plan, explain, reset_stats, stats

del _compatibility

__all__ = [
    "AuditError",
    "AutoTuner",
    "CppOp",
    "CustomOp",
    "Entry",
    "OperatorStats",
    "Operators",
    "Plan",
    "Report",
    "accelerate",
    "autotune",
    "build",
    "cmake_dir",
    "explain",
    "fast_custom_op",
    "get_include",
    "load_library",
    "reset_stats",
    "restore",
    "stats",
]
