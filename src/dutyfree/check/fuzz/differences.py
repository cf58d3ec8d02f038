"""The differences that docs/differences.md lists, each recognised as narrowly as it can be.

A rule takes a case, the step and what happened on both sides, and tells whether that is its difference. Its docstring
says which line of docs/differences.md it stands for.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dutyfree.check.fuzz.calls import Call, Later
from dutyfree.check.fuzz.compare import Compared, compare
from dutyfree.check.fuzz.source import Case
from dutyfree.check.fuzz.transforms import BY_AUTOGRAD, DIFFERENTIATING


@dataclass(frozen=True)
class Observed:
    """A step that went differently on the two sides."""

    case: Case
    compared: Compared

    @property
    def step(self) -> object:
        """The call or registration; None for the definition."""
        return self.case.steps[self.compared.number] if self.compared.number >= 0 else None


Rule = Callable[[Observed], bool]


def plain_name_as_mutates_args(observed: Observed) -> bool:
    """`mutates_args="x"`: ValueError in the reference, the argument ``x`` here."""
    raised = observed.compared.reference.get("step raised", ("", ""))
    return (
        observed.step is None
        and observed.case.operator.mutates_args.startswith("'")
        and raised[0] == "ValueError"
        and raised[1].startswith(("mutates_args must either be a sequence", "Attempted to create a custom op with"))
        # What comes after it in the definition may raise.
        and "mutates_args" not in observed.compared.ours.get("step raised", ("", ""))[1]
    )


def argument_named_self(observed: Observed) -> bool:
    """An argument named `self`, given by keyword to the object: TypeError from Python in the reference."""

    def by_python(raised: tuple[str, ...] | None) -> bool:
        # Not where PyTorch names another class: its modes and fake kernels can't take such an argument either.
        refusal = "CustomOpDef.__call__() got multiple values for argument 'self'"
        return raised is not None and raised[0] == "TypeError" and refusal in raised[1]

    return (
        isinstance(observed.step, Call)
        and observed.step.spelling == "object"
        and "self" in dict(observed.step.kwargs)
        and by_python(observed.compared.reference.get("raised"))
        and not by_python(observed.compared.ours.get("raised"))
    )


def differentiating_transform_with_a_formula(observed: Observed) -> bool:
    """`torch.func.grad`, `vjp`, `jacrev`, `vmap(grad)`, nested or not, over an operator with a formula: refused there.

    What comes after that here may raise, too: a formula that raises, an operator that functorch can't vectorise. A
    value has to be the right one where the case can tell.
    """

    def refused(raised: tuple[str, ...] | None) -> bool:
        return raised is not None and "functorch" in raised[1] and "setup_context staticmethod" in raised[1]

    return (
        isinstance(observed.step, Call)
        and observed.step.transform in DIFFERENTIATING
        and refused(observed.compared.reference.get("raised"))
        and not refused(observed.compared.ours.get("raised"))
        and not _wrong_gradient(observed, observed.step)
    )


def _wrong_gradient(observed: Observed, step: Call) -> bool:
    """Whether a transform gave another gradient than ``torch.autograd`` gives with the reference."""
    operator, fast = observed.case.operator, observed.compared.ours
    # Other bodies, formulas and states mean something else below a transform than on the tape.
    if (
        step.transform not in BY_AUTOGRAD
        or fast.get("raised") is not None
        or operator.formula != "good"
        or operator.body.effect
        or step.states
    ):
        return False
    later = [earlier for earlier in observed.case.steps[: observed.compared.number] if isinstance(earlier, Later)]
    steps: tuple[Call | Later, ...] = (*later, replace(step, transform=BY_AUTOGRAD[step.transform], backward=""))
    *_, recorded = compare(*Case(operator, steps).load())
    expected = recorded.reference
    return expected.get("raised") is None and _numbers(expected.get("value")) != _numbers(fast.get("value"))


def _numbers(value: Any) -> Any:
    """What has to be right of a described gradient; not the type and the node, which a transform makes others of."""
    if isinstance(value, dict) and "members" in value:
        return [_numbers(member) for member in value["members"]]
    return [value[name] for name in ("dtype", "shape", "values")] if isinstance(value, dict) else value


def thread_state_after_an_error(observed: Observed) -> bool:
    """The thread's dispatch keys after a result was refused: the reference leaves autograd's keys excluded."""
    reference, fast = observed.compared.reference, observed.compared.ours
    return (
        isinstance(observed.step, Call)
        and reference.get("raised") is not None
        and fast.get("raised") is not None
        and fast.get("state kept") is True
        and reference.get("state kept") is not True
        # Nothing else differs, but for the error where PyTorch trips over those keys as it words it.
        and {**reference, "state kept": True, "raised": fast["raised"]} == fast
        and (reference["raised"] == fast["raised"] or "INTERNAL ASSERT FAILED" in reference["raised"][1])
        and _autograd_is_excluded(*reference["state kept"])
    )


def _autograd_is_excluded(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether the one difference between two thread states is that autograd's keys are excluded in the later one."""
    were, are = (set(re.findall(r"\w+", state["excluded"])) for state in (before, after))
    return {**before, "excluded": after["excluded"]} == after and all("Autograd" in key for key in were ^ are)


# What registration, the object and its formula do better; accelerate leaves those as they are.
OF_FAST_CUSTOM_OP: tuple[Rule, ...] = (
    plain_name_as_mutates_args,
    argument_named_self,
    differentiating_transform_with_a_formula,
)
RULES: tuple[Rule, ...] = (*OF_FAST_CUSTOM_OP, thread_state_after_an_error)


def documented(observed: Observed) -> str | None:
    """The name of the rule whose difference this is; None where it is none that is documented."""
    rules = RULES if observed.case.side == "fast" else [rule for rule in RULES if rule not in OF_FAST_CUSTOM_OP]
    return next((rule.__name__ for rule in rules if rule(observed)), None)
