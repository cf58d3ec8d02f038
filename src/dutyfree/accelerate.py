"""``accelerate``: the direct path for operators that others registered, without touching their code; ``restore``."""

import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
from torch._library import custom_ops
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket, _OpNamespace

from dutyfree import _core, _front, _registrations, _settings, _targets

Target: TypeAlias = CustomOpDef | _core.CallTarget | OpOverload | OpOverloadPacket | types.ModuleType | str | None

F = TypeVar("F", bound=Callable[..., Any])

_BACKENDS = ("CPU", "CUDA", "XPU", "MPS", "HPU", "PrivateUse1")


@dataclass(frozen=True)
class Entry:
    """What became of one operator.

    Attributes:
        name: ``"namespace::name"``, with ``".overload"`` where it has one.
        path: The way of an ordinary call, with dense tensors, no gradient and no mode: ``"direct"``, ``"boxed"`` or
            ``"pytorch"``.
        reason: Why that is not ``"direct"``, as a sentence; empty where it is.
    """

    name: str
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.path}" + (f" ({self.reason})" if self.reason else "")


class Report:
    """The operators that a call of :func:`accelerate` covers, as they are when it is first looked at.

    A report has a length, yields its :class:`Entry` objects, and gives one by its name: ``report["mylib::op"]``.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Entry]:
        return map(self._entry, self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> Entry:
        if name not in self.names:
            raise KeyError(f"{name}: not among the {len(self.names)} operators of this report.")
        return self._entry(name)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        entries = list(self)
        paths = [entry.path for entry in entries]
        counts = ", ".join(f"{paths.count(path)} {path}" for path in ("direct", "boxed", "pytorch") if path in paths)
        width = max((len(entry.name) for entry in entries), default=0)
        lines = [f"{entry.name:{width}}  {entry.path:7}  {entry.reason}".rstrip() for entry in entries]
        return "\n".join([f"{len(entries)} operators{': ' if counts else ''}{counts}", *lines])

    def __repr__(self) -> str:
        return f"<Report of {len(self.names)} operators>"

    @functools.cached_property
    def _entry(self) -> Any:
        return functools.cache(_entry_of)


# Held while callables are put in front and taken away: a call in another thread may be an operator's first.
_changing = threading.RLock()


def _one_at_a_time(function: F) -> F:
    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with _changing:
            return function(*args, **kwargs)

    return locked  # type: ignore[return-value]


@_one_at_a_time
def accelerate(target: Target = None) -> Report:
    """Give operators that are already registered, and those that will be, the shortest way that their kernels allow.

    What the operators do stays what it was: those of :func:`torch.library.custom_op` keep the checks and the autograd
    of ``custom_op``, those registered through ``Library.impl`` keep the semantics of that. Operators with C++ kernels
    still go through PyTorch's whole dispatcher; only the way from Python to it is shorter.

    Args:
        target: What to accelerate: an operator (what ``custom_op`` returned, ``torch.ops.ns.op`` or
            ``torch.ops.ns.op.default``), its name (``"ns::op"`` or ``"ns::op.overload"``), a namespace (``"ns"`` or
            ``torch.ops.ns``), a module (the operators that its package defines), or None for every operator. Operators
            that are registered later are taken as well, when they are first called.

    Returns:
        A report of the operators that are there now. With ``DUTYFREE=off`` nothing is accelerated, and it says so.

    Raises:
        TypeError: ``target`` is none of these.

    Example::

        >>> import torch, dutyfree
        >>> print(dutyfree.accelerate("aten::relu"))
        1 operators: 1 boxed
        aten::relu  boxed    its kernels are C++
    """
    rule = _targets.parse(target)
    if _settings.enabled():
        _targets.add(rule, covered=True)
        _listen()
        for holder in _made_holders(rule.namespace):
            if any(map(rule.covers, _names_of(holder))):
                front = _front.front_of(holder)
                if front is None:
                    attach(holder)
                elif front.boxes:
                    _registrations.learn(front)
    return Report(sorted(filter(rule.covers, torch._C._dispatch_get_all_op_names())))


@_one_at_a_time
def restore(target: Target = None) -> None:
    """Undo :func:`accelerate`: the operators' objects hold again what they held before.

    Operators made by :func:`dutyfree.fast_custom_op` stay as they are.

    Args:
        target: As for :func:`accelerate`; None for all.
    """
    rule = _targets.parse(target)
    if target is None:
        _targets.clear()
    else:
        _targets.add(rule, covered=False)
    for holder in _attached():
        if any(rule.covers(operator.name) for operator in _operators_of(holder)):
            _front.take_away(holder)
            del _fronted[id(holder)]
    if not _targets.any_covered():
        _targets.clear()
        _stop_listening()


# The OpOverloads and packets with a callable of accelerate's, by identity.
_fronted: dict[int, "weakref.ref[Any]"] = {}


@_one_at_a_time
def attach(holder: Any) -> bool:
    """Put a callable in front of an OpOverload or a packet that ``accelerate`` covers. Whether it has one now."""
    if isinstance(holder._op, _core.OpCallable):
        return True
    if not isinstance(holder._op, types.BuiltinFunctionType):
        return False  # someone has put a callable of theirs there, which sees every call
    operators = _operators_for_packet(holder) if isinstance(holder, OpOverloadPacket) else _operators_for(holder)
    if not operators:
        return False
    _front.put_in_front(holder, operators[0], operators[1:])
    identity = id(holder)
    _fronted[identity] = weakref.ref(holder, lambda _: _fronted.pop(identity, None))
    return True


def _operators_for(overload: Any) -> tuple[_core.Operator, ...]:
    # TorchBindOpOverload has a way of its own to be called.
    if type(overload) is not OpOverload or not _targets.covered(overload.name()):
        return ()
    try:
        operator = _core.Operator(overload.name())
    except RuntimeError:
        return ()  # TorchScript's own: the dispatcher does not know it
    operator.allow_boxing()
    _registrations.learn(operator)
    return (operator,)


def _operators_for_packet(packet: Any) -> tuple[_core.Operator, ...]:
    """Those of its overloads, in the order in which PyTorch tries them, up to one that can't be taken."""
    if packet._has_torchbind_op_overload:
        return ()
    operators = []
    for name, qualname in zip(packet._overload_names, _names_of(packet), strict=True):
        # Asking the packet for an overload makes one.
        if not _targets.covered(qualname) or not attach(overload := getattr(packet, name or "default")):
            break
        operators.append(overload._op.operator)
    return tuple(operators)


def _names_of(holder: Any) -> list[str]:
    """The operators ("ns::op", "ns::op.overload") that an OpOverload or a packet stands for."""
    if isinstance(holder, OpOverload):
        return [holder._name]
    return [f"{holder._qualified_op_name}.{name}".removesuffix(".") for name in holder._overload_names]


def _operators_of(holder: Any) -> tuple[_core.Operator, ...]:
    callable_ = holder._op
    return (callable_.operator, *(callable_.later or ())) if isinstance(callable_, _core.OpCallable) else ()


def _attached() -> list[Any]:
    holders = [reference() for reference in list(_fronted.values())]
    return [holder for holder in holders if holder is not None and isinstance(holder._op, _core.OpCallable)]


def accelerated() -> dict[str, _core.Operator]:
    """The C++ sides of the operators that are accelerated, by name."""
    return {operator.name: operator for holder in _attached() for operator in _operators_of(holder)}


def _made_holders(namespace: str | None) -> list[Any]:
    """The OpOverloads and the packets that Python has objects for so far, of one namespace or of all."""
    made = vars(torch.ops).values() if namespace is None else [vars(torch.ops).get(namespace)]
    namespaces = [value for value in made if isinstance(value, _OpNamespace)]
    packets = [value for ns in namespaces for value in vars(ns).values() if isinstance(value, OpOverloadPacket)]
    overloads = [value for packet in packets for value in vars(packet).values() if isinstance(value, OpOverload)]
    return overloads + packets


_library: Any = torch.library.Library
# What stands in Library.impl as long as nobody puts theirs in front.
_learning_impl: Any = None


def _listen() -> None:
    _front.install_call_slots()
    _front.install_definition_slot()
    _core.ask_at_first_calls(attach)
    global _learning_impl
    if _library.impl is not _learning_impl:
        # A new one each time: an earlier one may lie below someone else's.
        _library.impl = _learning_impl = _learning_after(_library.impl)


def _stop_listening() -> None:
    _core.ask_at_first_calls(None)
    _core.remove_definition_slot()
    if _library.impl is _learning_impl:
        _library.impl = _learning_impl.__wrapped__
    if not any(_front.front_of(definition) for definition in custom_ops.OPDEFS.values()):
        _core.remove_call_slots()


def _learning_after(impl: Any) -> Any:
    """``Library.impl``, after which an accelerated operator learns of its new kernel."""

    @functools.wraps(impl)
    def learning(self: Any, op_name: Any, *args: Any, **kwargs: Any) -> Any:
        result = impl(self, op_name, *args, **kwargs)
        name, _, overload = self._resolve_op_name(op_name, "impl").split("::")[-1].partition(".")
        # Looked up where the objects are kept: attribute access would make them.
        packet = vars(vars(torch.ops).get(self.ns)).get(name) if self.ns in vars(torch.ops) else None
        front = _front.front_of(vars(packet).get(overload or "default")) if packet is not None else None
        if front is not None and front.boxes:
            _registrations.learn(front)
        return result

    return learning


def _entry_of(name: str) -> Entry:
    if not _settings.enabled():
        return Entry(name, "pytorch", "DUTYFREE=off")
    try:
        operator = _core.Operator(name)
    except RuntimeError as error:
        return Entry(name, "pytorch", str(error).splitlines()[0])
    unread = _registrations.learn(operator)
    stops = [operator.by_kernels(backend) for backend in _backends_of(name)]
    if operator.unsupported is None and None in stops:
        return Entry(name, "direct", "")
    if unread:
        reason = (
            f"the Python kernel under {', '.join(unread)} can't be read: torch {torch.__version__} lays such kernels "
            "out in another way than this dutyfree knows"
        )
    elif not (kernels := [kernel for kernel in operator.registered_kernels() if kernel[0] != "Meta"]):
        reason = "it has no kernel, but perhaps a fake one"
    elif not any(is_python for *_, is_python in kernels):
        reason = "its kernels are C++"
    elif operator.unsupported is not None:
        reason = f"the schema has no direct path ({operator.unsupported})"
    else:
        key = next((stop for stop in stops if stop is not None), "every key")
        reason = f"the kernel under {key} is C++, takes the dispatch keys, or there is none"
    return Entry(name, "boxed", reason)


def _backends_of(name: str) -> list[str | None]:
    """The backends that have a kernel, and None for calls without tensors."""
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return [*(backend for backend in _BACKENDS if has_kernel(name, backend)), None]
