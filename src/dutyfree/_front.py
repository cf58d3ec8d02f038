"""Puts the C++ callable in front of a registered operator, and takes it away again.

Every spelling of an operator ends in the ``_op`` of its OpOverload or of its packet. Those two attributes are all that
changes: the objects, their schema, tags and hash stay what they are.
"""

import weakref
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

from dutyfree import _core, _settings


def is_plain_call(cls: type) -> bool:
    """Whether ``cls.__call__`` is torch's own and only calls ``self._op`` (a packet also looks for script objects), or
    ``self._opoverload`` of a CustomOpDef.

    A wrapper that someone put there is not.
    """
    code = getattr(cls.__call__, "__code__", None)
    return (
        code is not None
        and code.co_filename == cls.__init__.__code__.co_filename  # type: ignore[misc]
        and not {"_op", "_opoverload"}.isdisjoint(code.co_names)
        and set(code.co_names)
        <= {
            *("_op", "_has_torchbind_op_overload", "_must_dispatch_in_python", "_call_overload_packet_from_python"),
            "_opoverload",
        }
    )


def install_call_slots() -> None:
    """Let calls of OpOverload and OpOverloadPacket objects skip a Python frame, unless someone changed ``__call__``."""
    if is_plain_call(OpOverload) and is_plain_call(OpOverloadPacket):
        _core.install_call_slots(OpOverload, OpOverloadPacket)


def install_definition_slot() -> None:
    """The same for what torch.library.custom_op returns."""
    if is_plain_call(CustomOpDef):
        _core.install_definition_slot(CustomOpDef)


def attach(overload: Any, operator: _core.Operator) -> None:
    """Put ``operator``'s callable in front of ``overload`` and, where it has no other overload, of its packet."""
    install_call_slots()
    put_in_front(overload, operator)
    packet = overload.overloadpacket
    if packet._overload_names == [overload._schema.overload_name]:
        put_in_front(packet, operator)


def put_in_front(holder: Any, operator: _core.Operator, later: tuple[_core.Operator, ...] = ()) -> None:
    """Put a callable in front of an OpOverload or a packet, which has none so far.

    ``later`` are a packet's other overloads, in PyTorch's order.
    """
    pytorch = holder._op
    auditor = None
    if _settings.audits():
        from dutyfree import audit

        auditor = audit.auditor_of(_core.OpCallable(pytorch, operator, later), pytorch)
    holder._op = _core.OpCallable(pytorch, operator, later, auditor)
    if isinstance(holder, OpOverloadPacket):
        register_builtin(holder._op, holder._qualified_op_name)


def take_away(holder: Any) -> None:
    """Undo ``put_in_front``: ``holder`` has the object in ``_op`` that was there before."""
    callable_ = holder._op
    holder._op = callable_.pytorch
    finalizer = _builtins.pop(id(callable_), None)
    if finalizer is not None:
        finalizer()


# TorchScript's entries for callables that are alive, by the callable's identity: calling one removes the entry.
_builtins: dict[int, "weakref.finalize[..., Any]"] = {}


def register_builtin(callable_: object, qualname: str) -> None:
    """Make TorchScript compile calls of ``callable_`` to the operator, for as long as the object lives.

    TorchScript knows it by its identity alone, and an identity is used again.
    """
    torch.jit._builtins._register_builtin(callable_, qualname)
    _builtins[id(callable_)] = weakref.finalize(callable_, _unregister_builtin, id(callable_))
    _builtins[id(callable_)].atexit = False


def _unregister_builtin(identity: int) -> None:
    table: Any = torch.jit._builtins._get_builtin_table()
    table.pop(identity, None)
    _builtins.pop(identity, None)


def schema_of(operator: _core.Operator) -> torch.FunctionSchema:
    """The schema of the operator that has this one's name now."""
    name, _, overload = operator.name.partition(".")
    return torch._C._get_schema(name, overload)


def front_of(op: object) -> _core.Operator | None:
    """The C++ side that stands in front of a CustomOpDef, an OpOverload or a packet; None where none does."""
    target: Any = getattr(op, "_opoverload", op)
    callable_ = getattr(target, "_op", None)
    return callable_.operator if isinstance(callable_, _core.OpCallable) else None
