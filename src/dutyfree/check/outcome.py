"""Everything that can be observed of one call, as plain Python values.

Two calls did the same if their ``Outcome``s are equal, and where they are not, the parts that differ can be read.
"""

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef


@dataclass
class Side:
    """One of the two operators, and what its body received on each call."""

    namespace: str
    name: str
    op: CustomOpDef
    received: list[Any] = field(default_factory=list)

    @property
    def qualname(self) -> str:
        return f"{self.namespace}::{self.name}"

    @property
    def packet(self) -> Any:
        return getattr(getattr(torch.ops, self.namespace), self.name)

    @property
    def overload(self) -> Any:
        return self.packet.default

    def spelled(self, spelling: str) -> Any:
        return {"object": self.op, "packet": self.packet, "overload": self.overload}[spelling]

    def values(self, tensor: Tensor) -> Any:
        """What is compared of a tensor's elements."""
        return values_of(tensor)

    def text(self, value: object) -> str:
        """The text of a value with the namespace and memory addresses taken out."""
        text = str(value).replace(self.namespace, "NAMESPACE")
        return re.sub(r"0x[0-9a-f]+", "0xADDRESS", text)


@dataclass
class Arguments:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call(*args: Any, **kwargs: Any) -> Arguments:
    return Arguments(args, kwargs)


@dataclass
class Outcome:
    """What one call did, as plain values."""

    value: Any
    raised: tuple[str, str] | None
    received: list[Any]
    inputs_after: Any
    warned: list[tuple[str, str]]
    state_kept: bool


def recording(body: Callable[..., Any], received: list[Any]) -> Callable[..., Any]:
    """The same function, which also writes down what it was given and the thread state that it ran in."""

    @functools.wraps(body)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        given = Arguments(tuple(map(seen, args)), {name: seen(value) for name, value in kwargs.items()})
        received.append((given, thread_state()))
        return body(*args, **kwargs)

    return recorded


@dataclass
class Seen:
    """A container as it was when the body received it, since the body may change it."""

    container: Any
    members: list[Any]


def seen(value: Any) -> Any:
    return Seen(value, list(value)) if isinstance(value, (list, tuple)) else value


def thread_state() -> dict[str, Any]:
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "excluded": str(torch._C._dispatch_tls_local_exclude_set()),
        "included": str(torch._C._dispatch_tls_local_include_set()),
        "autocast": torch.is_autocast_enabled("cpu"),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
    }


def members_of(value: Any) -> Iterator[Any]:
    """The tensors and containers in a call's arguments, depth first."""
    if isinstance(value, Arguments):
        for member in (*value.args, *value.kwargs.values()):
            yield from members_of(member)
    elif isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield value
        for member in value:
            yield from members_of(member)


def describe(value: Any, side: Side, inputs: list[Any]) -> Any:
    """A value with everything that a caller can tell about it, comparable by ``==``."""
    if isinstance(value, Tensor):
        return describe_tensor(value, side, inputs)
    if isinstance(value, Arguments):
        return {
            "args": [describe(member, side, inputs) for member in value.args],
            "kwargs": [(name, describe(member, side, inputs)) for name, member in value.kwargs.items()],
        }
    if isinstance(value, (list, tuple)):
        value = Seen(value, list(value))
    if isinstance(value, Seen):
        return {
            "type": type(value.container).__name__,
            "is input": position_in(value.container, inputs),
            "members": [describe(member, side, inputs) for member in value.members],
        }
    return (side.text(type(value).__name__), side.text(repr(value)))


def position_in(value: Any, inputs: list[Any]) -> int | None:
    return next((index for index, member in enumerate(inputs) if member is value), None)


def describe_tensor(tensor: Tensor, side: Side, inputs: list[Any]) -> dict[str, Any]:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        strided = tensor.layout is torch.strided and not tensor.is_nested
        return {
            "type": type(tensor).__name__,
            "is input": position_in(tensor, inputs),
            "dtype": tensor.dtype,
            "device": tensor.device,
            "layout": tensor.layout,
            "shape": None if tensor.is_nested else tuple(tensor.shape),
            "stride": tensor.stride() if strided else None,
            "offset": tensor.storage_offset() if strided else None,
            "values": side.values(tensor),
            "version": version_of(tensor),
            "inference": tensor.is_inference(),
            "requires grad": tensor.requires_grad,
            "leaf": tensor.is_leaf,
            "grad_fn": describe_grad_fn(tensor, side),
            "view": tensor._is_view(),
            "conj, neg": (tensor.is_conj(), tensor.is_neg()),
        }


def version_of(tensor: Tensor) -> int | None:
    """The version counter; None for an inference tensor, also for one that only its missing counter tells."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def values_of(tensor: Tensor) -> Any:
    if tensor.is_meta or tensor.is_nested or torch._is_zerotensor(tensor):
        return None
    if tensor.layout is torch.strided and tensor.numel() and not has_data(tensor):
        return None
    with torch.no_grad():
        dense = tensor.detach()
        if dense.is_quantized:
            dense = dense.dequantize()
        if dense.layout is not torch.strided:
            dense = dense.to_dense()
        return repr(dense.resolve_conj().resolve_neg().tolist())


def has_data(tensor: Tensor) -> bool:
    """Whether there is memory behind a strided tensor; a wrapper, a fake or a functorch tensor has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:
        return False


def describe_grad_fn(tensor: Tensor, side: Side) -> Any:
    if tensor.grad_fn is None:
        return None
    following = [None if node is None else side.text(type(node).__name__) for node, _ in tensor.grad_fn.next_functions]
    return side.text(type(tensor.grad_fn).__name__), following


def outcome_of(side: Side, spelling: str, arguments: Arguments) -> Outcome:
    """Calls one operator and writes down what happened."""
    return observe(side, lambda: side.spelled(spelling)(*arguments.args, **arguments.kwargs), arguments)


def observe(side: Side, run: Callable[[], Any], arguments: Arguments) -> Outcome:
    inputs = list(members_of(arguments))
    side.received.clear()
    value, raised = None, None
    before = thread_state()
    with warned_as() as caught:
        try:
            value = run()
        except Exception as error:
            raised = (type(error).__name__, side.text(error))
    state_kept = thread_state() == before
    received = [{"arguments": describe(given, side, inputs), "state": state} for given, state in side.received]
    side.received.clear()
    return Outcome(
        value=describe(value, side, inputs),
        raised=raised,
        received=received,
        inputs_after=describe(arguments, side, inputs),
        warned=[(warning.category.__name__, side.text(warning.message)) for warning in caught],
        state_kept=state_kept,
    )


@contextmanager
def warned_as() -> Iterator[list[warnings.WarningMessage]]:
    """Catches all warnings, those too that PyTorch gives once a process."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        torch.set_warn_always(always)
