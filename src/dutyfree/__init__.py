"""Custom operators for PyTorch without the dispatcher tax."""

from dutyfree import _compatibility  # isort: skip  (first: it says what is wrong where the core would only crash)
from dutyfree.accelerate import Entry, Report, accelerate, restore
from dutyfree.custom_op import CustomOp, fast_custom_op
from dutyfree.errors import AuditError
from dutyfree.explain import OperatorStats, Plan, explain, reset_stats, stats

del _compatibility

__all__ = [
    "AuditError",
    "CustomOp",
    "Entry",
    "OperatorStats",
    "Plan",
    "Report",
    "accelerate",
    "explain",
    "fast_custom_op",
    "reset_stats",
    "restore",
    "stats",
]
