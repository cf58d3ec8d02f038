"""Which way a call goes, and why: ``explain`` for one call, ``stats`` for all of them."""

import dataclasses
from typing import Any

import torch
from torch._library import custom_ops

from dutyfree import _core, _front

_SENTENCES = {
    "": "every kernel on the way is a known one",
    "disabled": "dutyfree is not in front of this operator",
    "schema": "the schema has no direct path ({detail})",
    "torch-function-mode": "a TorchFunctionMode is active (a torch.device context is one)",
    "dispatch-mode": "a TorchDispatchMode is active: {detail}",
    "thread-state": "this thread includes the dispatch key {key} (functorch, tracing, …)",
    "argument-count": "{argument} is missing, or there are too many positional arguments",
    "argument-name": "a keyword is unknown or names an argument that is given already",
    "argument-type": "{argument} needs a conversion that is PyTorch's, or is wrong: {value}",
    "tensor-subclass": "{argument} is a tensor subclass: {value}",
    "tensor-key": "a tensor carries the dispatch key {key}",
    "requires-grad": "an input requires grad and grad mode is on",
    "out-gradient": "an input requires grad, which functions with out= arguments don't support",
    "gradient-form": "an input requires grad, and PyTorch has to record the gradient of such results",
    "patched-apply": "an input requires grad, and torch.autograd.Function.apply is not torch's own any more",
    "kernel": "the kernel that serves the dispatch key {key} is not one of custom_op's own",
    "inference-mutation": "an inference tensor would be mutated outside inference mode",
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """The way that one call would go.

    Attributes:
        operator: ``"namespace::name"``.
        path: ``"direct"``, ``"autograd"``, ``"boxed"`` or ``"pytorch"``.
        code: The reason as a word (the keys of ``OperatorStats.reasons``); empty on the direct path.
        reason: The reason as a sentence.
    """

    operator: str
    path: str
    code: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.path} ({self.reason})"


@dataclasses.dataclass(frozen=True)
class OperatorStats:
    """One operator's calls since it was made or :func:`reset_stats` was called.

    Attributes:
        calls: Calls by path.
        reasons: Calls that left the direct path, by reason.
    """

    calls: dict[str, int]
    reasons: dict[str, int]


def explain(op: Any, /, *args: Any, **kwargs: Any) -> Plan:
    """The way that ``op(*args, **kwargs)`` would go here and now. Does not run the operator.

    Args:
        op: What :func:`fast_custom_op` returned, or its OpOverload, or its packet.
    """
    overload = getattr(op, "_opoverload", op)
    overload = getattr(overload, "default", overload)
    if not isinstance(overload, torch._ops.OpOverload):
        raise TypeError(f"explain takes an operator; {op!r} is a {type(op).__name__}.")
    front = _front.front_of(op)
    if front is None:
        return Plan(overload.name(), "pytorch", "disabled", _SENTENCES["disabled"])
    path, code, slot, key = front.explain(args, kwargs)
    schema = overload._schema
    argument = schema.arguments[slot].name if slot >= 0 else "an argument"
    value = _given(schema, slot, args, kwargs)
    sentence = _SENTENCES[code].format(
        detail=front.unsupported or _modes(), key=key, argument=argument, value=type(value).__name__
    )
    return Plan(overload.name(), path, code, sentence)


def _given(schema: torch.FunctionSchema, slot: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    if slot < 0:
        return None
    return args[slot] if slot < len(args) else kwargs.get(schema.arguments[slot].name)


def _modes() -> str:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return ", ".join(type(mode).__name__ for mode in _get_current_dispatch_mode_stack())


def stats() -> dict[str, OperatorStats]:
    """Calls of every operator that :func:`fast_custom_op` made, by ``"namespace::name"``."""
    return {name: OperatorStats(*front.counters()) for name, front in sorted(_fronts().items())}


def reset_stats() -> None:
    """Set every count to zero."""
    for front in _fronts().values():
        front.reset_counters()


def _fronts() -> dict[str, _core.Operator]:
    # One call copies the references, so that another thread may register meanwhile.
    definitions = [reference() for reference in custom_ops.OPDEFS.valuerefs()]
    fronts = {definition._qualname: _front.front_of(definition) for definition in definitions if definition is not None}
    return {name: front for name, front in fronts.items() if front is not None}
