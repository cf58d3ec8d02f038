"""The environment variable DUTYFREE, read when an operator is made."""

import os


def enabled() -> bool:
    """Whether operators get a direct path at all: DUTYFREE=off leaves every call to PyTorch."""
    value = os.environ.get("DUTYFREE", "on")
    if value not in ("on", "off"):
        raise ValueError(f"DUTYFREE={value!r}: expected 'on' or 'off'.")
    return value == "on"
