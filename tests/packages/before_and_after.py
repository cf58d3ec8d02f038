"""Compares what operators that a package registered do before ``dutyfree.accelerate``, under it, and after ``restore``.

All that can be observed of a call is written down as an ``Outcome`` (``dutyfree.check.outcome``), so that one ``==``
compares two calls. Which path the accelerated call took is asserted too: both what ``explain`` foretells and what
``stats`` counts.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._library import custom_ops

import dutyfree
from dutyfree.check.outcome import Arguments, Outcome, Side, members_of, observe

Call = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One operator with arguments, and what becomes of such a call.

    Attributes:
        operator: ``"namespace::name"``.
        arguments: Makes the same arguments each time; tensors that may require grad don't.
        path: The path of an accelerated call that needs no gradient.
        raises: The type of the exception that the call ends with on a machine without a GPU; None where it returns.
        gradient_path: The path with floating-point tensors that require grad.
        gradient_raises: As ``raises``, for a call with such tensors.
    """

    operator: str
    arguments: Callable[[], Arguments]
    path: str = "direct"
    raises: str | None = None
    gradient_path: str = "autograd"
    gradient_raises: str | None = None

    def __str__(self) -> str:
        return self.operator


@dataclass(frozen=True)
class Expected:
    """Of one call: the path, and the type of the exception that it ends with."""

    path: str
    raises: str | None


@contextmanager
def accelerated(target: Any) -> Iterator[dutyfree.Report]:
    report = dutyfree.accelerate(target)
    dutyfree.reset_stats()
    try:
        yield report
    finally:
        dutyfree.restore(target)


def side_of(operator: str) -> Side:
    namespace, _, name = operator.partition("::")
    return Side(namespace, name, custom_ops.OPDEFS.get(operator))  # type: ignore[arg-type]


def spellings(operator: str) -> list[str]:
    """The ways to spell a call of it; only custom_op returns an object that can be called."""
    return ["object", "packet", "overload"] if operator in custom_ops.OPDEFS else ["packet", "overload"]


def paths_taken() -> dict[str, dict[str, int]]:
    """The calls of each operator by path, since the last ``reset_stats``, without those that are zero."""
    taken = {name: {path: n for path, n in stats.calls.items() if n} for name, stats in dutyfree.stats().items()}
    return {name: calls for name, calls in taken.items() if calls}


def check(case: Case, target: Any) -> list[Outcome]:
    """Asserts that calls without a gradient are the same in every spelling, on the path that the case names."""
    expected = Expected(case.path, case.raises)
    return [_check(case.operator, target, s, expected, case.arguments, _call) for s in spellings(case.operator)]


def check_with_gradient(case: Case, target: Any) -> list[Outcome]:
    """The same for a call whose floating-point tensors require grad, and for the backward pass that follows."""

    def arguments() -> Arguments:
        given = case.arguments()
        for tensor in differentiable(given):
            tensor.requires_grad_()
        return given

    expected = Expected(case.gradient_path, case.gradient_raises or case.raises)
    return [_check(case.operator, target, s, expected, arguments, _call_and_go_back) for s in spellings(case.operator)]


def differentiable(arguments: Arguments) -> list[Tensor]:
    """The tensors that can require grad."""
    return [
        member
        for member in members_of(arguments)
        if isinstance(member, Tensor) and member.dtype.is_floating_point and member.is_leaf
    ]


def _check(
    operator: str,
    target: Any,
    spelling: str,
    expected: Expected,
    arguments: Callable[[], Arguments],
    run: Callable[[Call, Arguments], Any],
) -> Outcome:
    side = side_of(operator)
    # Not compared: a first call may import modules and warn of it.
    _outcome(side, spelling, arguments(), run)
    before = _outcome(side, spelling, arguments(), run)
    with accelerated(target):
        given = arguments()
        plan = dutyfree.explain(side.spelled(spelling), *given.args, **given.kwargs)
        under = _outcome(side, spelling, given, run)
        taken = paths_taken()[operator]
    after = _outcome(side, spelling, arguments(), run)
    assert under == before, f"{operator} ({spelling})"
    assert after == before, f"{operator} ({spelling}) after restore"
    assert under.state_kept
    assert plan.path == expected.path, plan
    # A formula may call its own operator, below autograd.
    assert taken.pop(expected.path) == 1 or expected.path == "direct"
    assert set(taken) <= {"direct"}, taken
    assert (before.raised[0] if before.raised else None) == expected.raises, before.raised
    return under


def _outcome(side: Side, spelling: str, arguments: Arguments, run: Callable[[Call, Arguments], Any]) -> Outcome:
    torch.manual_seed(0)
    return observe(side, lambda: run(side.spelled(spelling), arguments), arguments)


def _call(op: Call, arguments: Arguments) -> Any:
    return op(*arguments.args, **arguments.kwargs)


def _call_and_go_back(op: Call, arguments: Arguments) -> list[Any]:
    """The result, then the gradients, or why there are none."""
    result = op(*arguments.args, **arguments.kwargs)
    grads: list[Any] = []
    roots = [member for member in members_of(Arguments((result,), {})) if _can_go_back(member)]
    if roots:
        try:
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
            grads = [tensor.grad for tensor in differentiable(arguments)]
        except RuntimeError as error:
            grads = [type(error).__name__, str(error)]
    return [result, grads]


def _can_go_back(member: Any) -> bool:
    return isinstance(member, Tensor) and member.requires_grad and member.dtype.is_floating_point


def same(run: Callable[[], Any], target: Any) -> dict[str, dict[str, int]]:
    """Asserts that ``run`` returns the same before, under and after; returns the paths that its calls took."""
    run()
    before = _plain(run())
    with accelerated(target):
        under = _plain(run())
        taken = paths_taken()
    assert under == before
    assert _plain(run()) == before
    return taken


def _plain(value: Any) -> Any:
    no_operator = Side("(no namespace)", "", None)  # type: ignore[arg-type]
    return observe(no_operator, lambda: value, Arguments((), {})).value


def registered(*namespaces: str) -> list[str]:
    """All operators of these namespaces."""
    return sorted(name for name in torch._C._dispatch_get_all_op_names() if name.partition("::")[0] in namespaces)


def by_path(report: dutyfree.Report) -> dict[str, int]:
    return dict(Counter(entry.path for entry in report))
