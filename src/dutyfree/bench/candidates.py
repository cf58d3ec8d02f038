"""The ways of calling one function that are compared: as it is, and registered as an operator in each way there is."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from dutyfree import explain, fast_custom_op
from dutyfree.bench.calls import Case
from dutyfree.bench.errors import BenchmarkError
from dutyfree.bench.measure import Call
from dutyfree.custom_op import CustomOp

NAMESPACE = "dutyfree_bench"
SPELLINGS = ["dutyfree.object", "dutyfree.packet", "dutyfree.overload"]
CANDIDATES = ["plain", "custom_op", "library", *SPELLINGS]

# Libraries unregister their operators when they are collected.
_libraries: list[torch.library.Library] = []


@functools.cache
def build(case: Case) -> dict[str, Callable[..., Any]]:
    """The candidates of a case by name. Its operators can be registered once in a process, so they are kept."""

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
    return {
        "plain": case.make_function(),
        "custom_op": custom_op,
        "library": getattr(getattr(torch.ops, NAMESPACE), operator_name("library")).default,
        **spellings(fast),
    }


def spellings(operator: CustomOp[..., Any]) -> dict[str, Callable[..., Any]]:
    """The candidates that are one operator of dutyfree's."""
    overload: Any = operator._opoverload
    return dict(zip(SPELLINGS, (operator, overload.overloadpacket, overload), strict=True))


def require_path(path: str, case: str, candidate: str, operator: Callable[..., Any], call: Call) -> None:
    """Refuses to time a dutyfree call that would take another path: the number would mean something else."""
    plan = explain(operator, *call.args, **call.kwargs)
    if plan.path != path:
        raise BenchmarkError(
            f"benchmark {case}: {candidate} would take the path {plan.path!r}, not {path!r} ({plan.reason})"
        )
