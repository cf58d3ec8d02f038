"""The environment variable DUTYFREE, read when an operator is made or accelerated."""

import os


def _value() -> str:
    value = os.environ.get("DUTYFREE", "on")
    if value not in ("on", "off", "audit"):
        raise ValueError(f"DUTYFREE={value!r}: expected 'on', 'off' or 'audit'.")
    return value


def enabled() -> bool:
    """Whether operators get a direct path at all: DUTYFREE=off leaves every call to PyTorch."""
    return _value() != "off"


def audits() -> bool:
    """Whether calls also run PyTorch's way and are compared: DUTYFREE=audit."""
    return _value() == "audit"
