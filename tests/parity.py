"""Compares an operator made by fast_custom_op with the same operator made by torch.library.custom_op.

Both operators are registered in this process with the same body, in namespaces whose names have the same length, and
called with fresh arguments each. Everything that a caller or the body can observe is written down as plain Python
values (an ``Outcome``), so that one ``==`` compares two calls and pytest shows where they differ. ``check`` also
asserts which path the fast operator took, both as ``explain`` foretells it and as ``stats`` counts it.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

import dutyfree
from dutyfree.check.outcome import Arguments, Outcome, Side, call, observe, outcome_of, recording, thread_state

__all__ = ["Arguments", "Outcome", "Pair", "Side", "call", "check", "observe", "outcome_of", "pair_of", "thread_state"]

SPELLINGS = ("object", "packet", "overload")

_numbers = itertools.count()


@dataclass
class Pair:
    """The same operator, registered twice."""

    reference: Side
    fast: Side

    def each(self, change: Callable[[CustomOpDef], object]) -> None:
        """Applies a later registration to both operators."""
        for side in (self.reference, self.fast):
            change(side.op)

    def sides(self) -> tuple[Side, Side]:
        return self.reference, self.fast


def unique_namespaces() -> tuple[str, str]:
    """Two namespaces of equal length that no other test uses."""
    number = next(_numbers)
    return f"parity_ref_{number}", f"parity_our_{number}"


def pair_of(body: Callable[..., Any], *, name: str = "op", record: bool = True, **options: Any) -> Pair:
    """Registers ``body`` with torch.library.custom_op and with fast_custom_op; ``options`` go to both.

    ``mutates_args`` may be left out for an operator that mutates nothing.
    """
    options.setdefault("mutates_args", ())
    sides = []
    for namespace, register in zip(
        unique_namespaces(), (torch.library.custom_op, dutyfree.fast_custom_op), strict=True
    ):
        received: list[Any] = []
        function = recording(body, received) if record else body
        op = register(f"{namespace}::{name}", function, **options)
        sides.append(Side(namespace, name, op, received))
    return Pair(*sides)


def refused_alike(body: Callable[..., Any], *, name: str = "op", **options: Any) -> tuple[str, str]:
    """Asserts that custom_op and fast_custom_op refuse ``body`` with the same error; returns its type and text."""
    options.setdefault("mutates_args", ())
    errors = []
    for namespace, register in zip(
        unique_namespaces(), (torch.library.custom_op, dutyfree.fast_custom_op), strict=True
    ):
        try:
            register(f"{namespace}::{name}", body, **options)
        except Exception as error:
            errors.append((type(error).__name__, str(error).replace(namespace, "NAMESPACE")))
        else:
            errors.append(("", "accepted"))
    assert errors[1] == errors[0]
    assert errors[0][0], "both accept it"
    return errors[0]


def check(
    pair: Pair,
    arguments: Callable[[], Arguments],
    *,
    reason: str | tuple[str, ...] | None = "",
    spellings: tuple[str, ...] = SPELLINGS,
) -> Outcome:
    """Asserts that both operators do the same with ``arguments()`` in every spelling; returns what they did.

    ``reason`` is the code with which the fast operator leaves the direct path, "" where it must not leave it. A tuple
    names the codes (with "" for the direct path) of which any one is right, and None allows all of them. The call must
    in any case go the way that ``explain`` foretells.
    """
    for spelling in spellings:
        expected = outcome_of(pair.reference, spelling, arguments())
        given = arguments()
        pair.fast.received.clear()
        plan = dutyfree.explain(pair.fast.spelled(spelling), *given.args, **given.kwargs)
        assert not pair.fast.received, "explain ran the body"
        if reason is not None:
            assert_took(plan.path, plan.code, reason)
        before = counted(pair.fast.op)
        actual = outcome_of(pair.fast, spelling, given)
        ways = ways_between(before, counted(pair.fast.op))
        assert (plan.path, plan.code) in ways, "explain foretold another way"
        if reason is not None:
            assert_went(ways, reason)
        assert actual == expected, spelling
        assert actual.state_kept, spelling
    return actual


def assert_took(path: str, code: str, reason: str | tuple[str, ...]) -> None:
    """Asserts that a path and its code are what ``reason`` allows (see ``check``)."""
    allowed = (reason,) if isinstance(reason, str) else reason
    assert code in allowed, f"took {path!r} because of {code!r}, allowed: {allowed}"
    if not code:
        assert path == "direct"
    elif code == "requires-grad":
        assert path == "autograd"
    else:
        assert path == "pytorch"


def took(side: Side, reason: str | tuple[str, ...] = "") -> AbstractContextManager[None]:
    """Asserts that the calls in the block are counted as ``reason`` says (see ``check``)."""
    return took_by(side.op, reason)


@contextmanager
def took_by(op: CustomOpDef, reason: str | tuple[str, ...] = "") -> Iterator[None]:
    """As ``took``, for an operator that is not one of a pair."""
    before = counted(op)
    yield
    assert_went(ways_between(before, counted(op)), reason)


Counts = tuple[dict[str, int], dict[str, int]]


def counted(op: CustomOpDef) -> Counts:
    """An operator's calls by path and by the reason for leaving the direct path."""
    stats = dutyfree.stats().get(op._qualname)
    return ({}, {}) if stats is None else (dict(stats.calls), dict(stats.reasons))


def ways_between(before: Counts, after: Counts) -> set[tuple[str, str]]:
    """The paths, each with its code, that calls took between two counts. One call may make others."""
    paths, codes = (
        [name for name in new if new[name] > old.get(name, 0)] for old, new in zip(before, after, strict=True)
    )
    assert bool(set(paths) - {"direct"}) == bool(codes), (paths, codes)
    ways = {("direct", "")} if "direct" in paths else set()
    if "autograd" in paths:
        ways.add(("autograd", "requires-grad"))
    if "pytorch" in paths:
        ways |= {("pytorch", code) for code in codes if code != "requires-grad"}
    return ways


def assert_went(ways: set[tuple[str, str]], reason: str | tuple[str, ...]) -> None:
    """Asserts that the ways of some calls are what ``reason`` allows (see ``check``)."""
    assert ways, "the operator was not called"
    # A call that PyTorch's own path hands on to the operator again (a mode does) is counted again, often as direct.
    for path, code in ways if len(ways) == 1 else ways - {("direct", "")}:
        assert_took(path, code, reason)
