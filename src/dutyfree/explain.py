"""Which way a call goes, and why: ``explain`` for one call, ``stats`` for all of them."""

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch._library import custom_ops

from dutyfree import _core, _front, _settings
from dutyfree.accelerate import accelerated, attach

if TYPE_CHECKING:
    from rich.console import Console

_PATHS = ("direct", "autograd", "boxed", "pytorch")
_SENTENCES = {
    "": "every kernel on the way is a known one",
    "disabled": "dutyfree is not in front of this operator: accelerate it, or make it with fast_custom_op",
    "schema": "the schema has no direct path ({detail})",
    "torch-function-mode": "a TorchFunctionMode is active (a torch.device context is one)",
    "dispatch-mode": "a TorchDispatchMode is active: {detail}",
    "thread-state": "this thread includes the dispatch key {key} (functorch, tracing, …)",
    "argument-count": "{argument} is missing, or there are too many positional arguments",
    "argument-name": "a keyword is unknown or names an argument that is given already",
    "argument-type": "{argument}: {value} for {expected}, which PyTorch converts or refuses",
    "tensor-subclass": "{argument} is a tensor subclass: {value}",
    "tensor-key": "a tensor carries the dispatch key {key}",
    "requires-grad": "an input requires grad and grad mode is on",
    "out-gradient": "an input requires grad, which functions with out= arguments don't support",
    "gradient-form": "an input requires grad, and PyTorch has to record the gradient of such results",
    "patched-apply": "an input requires grad, and torch.autograd.Function.apply is not torch's own any more",
    "kernel": "the kernel that serves the dispatch key {key} is not a known one",
    "inference-mutation": "an inference tensor would be mutated outside inference mode",
    "cpp-kernel": "its kernels are C++, or take the dispatch key set",
    "redefined": "the operator is gone, or another one has its name by now",
    "argument-mismatch": "{argument}: {value} for {expected}, which PyTorch refuses",
    "torch-function-argument": "{argument} has a __torch_function__: {value}",
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
        op: What :func:`fast_custom_op` or :func:`torch.library.custom_op` returned, or an OpOverload, or a packet.
    """
    holder: Any = getattr(op, "_opoverload", op)
    if not isinstance(holder, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        raise TypeError(f"explain takes an operator; {op!r} is a {type(op).__name__}.")
    # What a first call would do.
    if _front.front_of(holder) is None and not attach(holder):
        name = holder._qualified_op_name if isinstance(holder, torch._ops.OpOverloadPacket) else holder._name
        return Plan(name, "pytorch", "disabled", _SENTENCES["disabled"] if _settings.enabled() else "DUTYFREE=off")
    callable_: Any = holder._op
    for front in (callable_.operator, *(callable_.later or ())):
        path, code, slot, key = front.explain(args, kwargs)
        if path != "pytorch" or code not in ("argument-count", "argument-name", "argument-mismatch"):
            break  # else the arguments fit no way: a packet tries its next overload
    schema = _front.schema_of(front)
    argument = schema.arguments[slot].name if slot >= 0 else "an argument"
    value = _given(schema, slot, args, kwargs)
    sentence = _SENTENCES[code].format(
        detail=front.unsupported or _modes(),
        key=key,
        argument=f"argument {slot} ({argument})" if slot >= 0 else argument,
        value=_type_name(value),
        expected=schema.arguments[slot].type if slot >= 0 else "",
    )
    return Plan(front.name, path, code, sentence)


def _type_name(value: object) -> str:
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


def _given(schema: torch.FunctionSchema, slot: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    if slot < 0:
        return None
    return args[slot] if slot < len(args) else kwargs.get(schema.arguments[slot].name)


def _modes() -> str:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return ", ".join(type(mode).__name__ for mode in _get_current_dispatch_mode_stack())


def stats() -> dict[str, OperatorStats]:
    """Calls of every operator that :func:`fast_custom_op` made or :func:`accelerate` took, by ``"namespace::name"`` or
    ``"namespace::name.overload"``."""
    return {name: OperatorStats(*front.counters()) for name, front in sorted(_fronts().items())}


def print_stats(console: "Console") -> None:
    """Print the operators that were called, those with the most calls first."""
    from rich.table import Column, Table  # here, since rich would take a third of the time of `import dutyfree`

    table = Table("operator", *(Column(path, justify="right") for path in _PATHS), "why not direct")
    called = {name: counts for name, counts in stats().items() if any(counts.calls.values())}
    for name, counts in sorted(called.items(), key=lambda item: -sum(item[1].calls.values())):
        reasons = ", ".join(f"{code} {number:,}" for code, number in counts.reasons.items())
        table.add_row(name, *(f"{counts.calls[path]:,}" for path in _PATHS), reasons)
    console.print(table)


def reset_stats() -> None:
    """Set every count to zero."""
    for front in _fronts().values():
        front.reset_counters()


def _fronts() -> dict[str, _core.Operator]:
    # One call copies the references, so that another thread may register meanwhile.
    definitions = [reference() for reference in custom_ops.OPDEFS.valuerefs()]
    made = {definition._qualname: _front.front_of(definition) for definition in definitions if definition is not None}
    return {name: front for name, front in made.items() if front is not None} | accelerated()
