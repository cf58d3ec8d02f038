"""Puts the C++ callable in front of a registered operator.

Every spelling of an operator ends in the ``_op`` of its OpOverload or of its packet. Those two attributes are all that
changes: the objects, their schema, tags and hash stay what they are.
"""

import weakref
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from dutyfree import _core


def is_plain_call(cls: type) -> bool:
    """Whether ``cls.__call__`` is torch's own and only calls ``self._op`` (a packet also looks for script objects).

    A wrapper that someone put there is not.
    """
    code = getattr(cls.__call__, "__code__", None)
    return (
        code is not None
        and code.co_filename == torch._ops.OpOverload.__init__.__code__.co_filename
        and "_op" in code.co_names
        and set(code.co_names)
        <= {"_op", "_has_torchbind_op_overload", "_must_dispatch_in_python", "_call_overload_packet_from_python"}
    )


def install_call_slots() -> None:
    """Let calls of OpOverload and OpOverloadPacket objects skip a Python frame, unless someone changed ``__call__``."""
    if is_plain_call(OpOverload) and is_plain_call(OpOverloadPacket):
        _core.install_call_slots(OpOverload, OpOverloadPacket)


def attach(overload: Any, operator: _core.Operator) -> None:
    """Put ``operator``'s callable in front of ``overload`` and, where it has no other overload, of its packet."""
    install_call_slots()
    overload._op = _core.OpCallable(overload._op, operator)
    packet = overload.overloadpacket
    if packet._overload_names == [overload._schema.overload_name]:
        packet._op = _core.OpCallable(packet._op, operator)
        register_builtin(packet._op, packet._qualified_op_name)


def register_builtin(callable_: object, qualname: str) -> None:
    """Make TorchScript compile calls of ``callable_`` to the operator, for as long as the object lives.

    TorchScript knows it by its identity alone, and an identity is used again.
    """
    torch.jit._builtins._register_builtin(callable_, qualname)
    table: Any = torch.jit._builtins._get_builtin_table()
    weakref.finalize(callable_, table.pop, id(callable_), None).atexit = False


def front_of(op: object) -> _core.Operator | None:
    """The C++ side that stands in front of a CustomOpDef, an OpOverload or a packet; None where none does."""
    target: Any = getattr(op, "_opoverload", op)
    callable_ = getattr(target, "_op", None)
    return callable_.operator if isinstance(callable_, _core.OpCallable) else None
