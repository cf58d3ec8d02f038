"""The ways of calling one function that are compared: as it is, and registered as an operator in each way there is."""

from collections.abc import Callable
from typing import Any

import torch

from dutyfree import explain, fast_custom_op
from dutyfree.bench.calls import Case
from dutyfree.bench.measure import Call

NAMESPACE = "dutyfree_bench"
CANDIDATES = ["plain", "custom_op", "library", "dutyfree.object", "dutyfree.packet", "dutyfree.overload"]

# Libraries unregister their operators when they are collected.
_libraries: list[torch.library.Library] = []


def build(case: Case) -> dict[str, Callable[..., Any]]:
    """The candidates of a case by name. A case's operators can be registered once in a process: results are kept."""
    if case.name not in _built:
        _built[case.name] = _register(case)
    return _built[case.name]


_built: dict[str, dict[str, Callable[..., Any]]] = {}


def _register(case: Case) -> dict[str, Callable[..., Any]]:
    def operator_name(candidate: str) -> str:
        return f"{case.name}_{candidate}"

    custom_op = torch.library.custom_op(
        f"{NAMESPACE}::{operator_name('custom_op')}", case.make_function(), mutates_args=case.mutates_args
    )

    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    _libraries.append(library)
    function = case.make_function()
    schema = torch.library.infer_schema(function, mutates_args=case.mutates_args)
    library.define(operator_name("library") + schema)
    library.impl(operator_name("library"), function, "CompositeExplicitAutograd")

    fast = fast_custom_op(
        f"{NAMESPACE}::{operator_name('dutyfree')}", case.make_function(), mutates_args=case.mutates_args
    )
    operators = getattr(torch.ops, NAMESPACE)
    packet = getattr(operators, operator_name("dutyfree"))
    return {
        "plain": case.make_function(),
        "custom_op": custom_op,
        "library": getattr(operators, operator_name("library")).default,
        "dutyfree.object": fast,
        "dutyfree.packet": packet,
        "dutyfree.overload": packet.default,
    }


def require_direct(case: str, candidate: str, operator: Callable[..., Any], call: Call) -> None:
    """Refuses to time a dutyfree call that would not take the direct path: the number would mean something else."""
    plan = explain(operator, *call.args, **call.kwargs)
    if plan.path != "direct":
        raise RuntimeError(
            f"benchmark {case}: {candidate} would take the path {plan.path!r}, not 'direct' ({plan.reason})"
        )
