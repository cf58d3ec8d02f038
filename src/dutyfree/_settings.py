"""The environment variable DUTYFREE, read when an operator is made or accelerated; and setting others for a while."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


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


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """A variable of this process's environment inside the ``with``, and what it was before after it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
