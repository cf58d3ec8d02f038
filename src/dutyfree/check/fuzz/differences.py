"""The differences that docs/differences.md lists, each recognised as narrowly as it can be.

A rule takes a case, the step and what happened on both sides, and tells whether that is its difference. Its docstring
says which line of docs/differences.md it stands for.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dutyfree.check.fuzz.calls import Call
from dutyfree.check.fuzz.sides import Compared
from dutyfree.check.fuzz.source import Case
from dutyfree.check.fuzz.transforms import DIFFERENTIATING


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
        and "mutates_args" not in observed.compared.fast.get("step raised", ("", ""))[1]
    )


def argument_named_self(observed: Observed) -> bool:
    """An argument named `self`, given by keyword to the object: TypeError from Python in the reference."""
    raised = observed.compared.reference.get("raised") or ("", "")
    return (
        isinstance(observed.step, Call)
        and observed.step.spelling == "object"
        and "self" in dict(observed.step.kwargs)
        and raised[0] == "TypeError"
        and "got multiple values for argument 'self'" in raised[1]
    )


def differentiating_transform_with_a_formula(observed: Observed) -> bool:
    """`torch.func.grad`, `vjp`, `jacrev` over an operator with a formula: the reference refuses at once.

    What comes after that here may raise, too: a formula that raises, an operator that functorch can't vectorise.
    """
    raised = observed.compared.reference.get("raised") or ("", "")
    return (
        isinstance(observed.step, Call)
        and observed.step.transform in DIFFERENTIATING
        and "setup_context" in raised[1]
        and "functorch" in raised[1]
    )


def thread_state_after_an_error(observed: Observed) -> bool:
    """The thread's dispatch keys after a result was refused: the reference leaves autograd's keys excluded."""
    reference, fast = observed.compared.reference, observed.compared.fast
    return (
        isinstance(observed.step, Call)
        and reference.get("raised") is not None
        and fast.get("state kept") is True
        # Nothing else differs.
        and {**reference, "state kept": True} == fast
    )


RULES: tuple[Rule, ...] = (
    plain_name_as_mutates_args,
    argument_named_self,
    differentiating_transform_with_a_formula,
    thread_state_after_an_error,
)


def documented(observed: Observed) -> str | None:
    """The name of the rule whose difference this is; None where it is none that is documented."""
    return next((rule.__name__ for rule in RULES if rule(observed)), None)
