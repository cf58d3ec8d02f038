"""A pytest plugin: the tests that compare ``fast_custom_op`` with ``custom_op`` compare accelerated operators instead.

``dutyfree.fast_custom_op`` then registers with ``torch.library.custom_op`` and accelerates what that returned. What the
tests say about paths is said of ``fast_custom_op``, whose calls PyTorch makes where those of an accelerated operator
may be boxed; so ``explain`` and ``stats`` call both "pytorch" here. ``test_accelerate_parity.py`` runs it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import dutyfree
import parity

CODES = {"argument-mismatch": "argument-type", "torch-function-argument": "tensor-subclass"}

explain, stats, assert_took = dutyfree.explain, dutyfree.stats, parity.assert_took


def accelerated_custom_op(name: str, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    if function is None:
        return lambda function: accelerated_custom_op(name, function, **options)
    options.setdefault("mutates_args", ())
    definition = torch.library.custom_op(name, function, **options)
    dutyfree.accelerate(definition)
    return definition


def explain_as_of_fast_custom_op(op: Any, /, *args: Any, **kwargs: Any) -> dutyfree.Plan:
    plan = explain(op, *args, **kwargs)
    path = "pytorch" if plan.path == "boxed" else plan.path
    return dataclasses.replace(plan, path=path, code=CODES.get(plan.code, plan.code))


def stats_as_of_fast_custom_op() -> dict[str, dutyfree.OperatorStats]:
    translated = {}
    for name, counts in stats().items():
        calls, reasons = dict(counts.calls), dict(counts.reasons)
        calls["pytorch"] = calls.get("pytorch", 0) + calls.pop("boxed", 0)
        for code, other in CODES.items():
            if code in reasons:
                reasons[other] = reasons.get(other, 0) + reasons.pop(code)
        translated[name] = dutyfree.OperatorStats(calls, reasons)
    return translated


def assert_took_or_learned(path: str, code: str, reason: str | tuple[str, ...]) -> None:
    """As ``parity.assert_took``; a kernel that someone else registered is known, too, where it is a Python function."""
    if "kernel" in ((reason,) if isinstance(reason, str) else reason) and not code:
        reason = code
    assert_took(path, code, reason)


dutyfree.fast_custom_op = accelerated_custom_op
dutyfree.explain = explain_as_of_fast_custom_op
dutyfree.stats = stats_as_of_fast_custom_op
parity.assert_took = assert_took_or_learned


def pytest_runtest_teardown() -> None:
    dutyfree.restore()
