"""Compares an operator made by fast_custom_op with the same operator made by torch.library.custom_op.

Both operators are registered in this process with the same body, in namespaces whose names have the same length, and
called with fresh arguments each. Everything that a caller or the body can observe is written down as plain Python
values (an ``Outcome``), so that one ``==`` compares two calls and pytest shows where they differ. ``check`` also
asserts which path the fast operator took, both as ``explain`` foretells it and as ``stats`` counts it.
"""

import functools
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

import dutyfree

SPELLINGS = ("object", "packet", "overload")

_numbers = itertools.count()


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

    def text(self, value: object) -> str:
        """The text of a value with the namespace and memory addresses taken out."""
        text = str(value).replace(self.namespace, "NAMESPACE")
        return re.sub(r"0x[0-9a-f]+", "0xADDRESS", text)


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
    return (type(value).__name__, side.text(repr(value)))


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
            "values": values_of(tensor),
            "version": None if tensor.is_inference() else tensor._version,
            "inference": tensor.is_inference(),
            "requires grad": tensor.requires_grad,
            "leaf": tensor.is_leaf,
            "grad_fn": describe_grad_fn(tensor, side),
            "view": tensor._is_view(),
            "conj, neg": (tensor.is_conj(), tensor.is_neg()),
        }


def values_of(tensor: Tensor) -> Any:
    if tensor.is_meta or tensor.is_nested or torch._is_zerotensor(tensor):
        return None
    if tensor.layout is torch.strided and not tensor.untyped_storage().data_ptr() and tensor.numel():
        return None
    with torch.no_grad():
        dense = tensor.detach()
        if dense.is_quantized:
            dense = dense.dequantize()
        if dense.layout is not torch.strided:
            dense = dense.to_dense()
        return repr(dense.resolve_conj().resolve_neg().tolist())


def describe_grad_fn(tensor: Tensor, side: Side) -> Any:
    if tensor.grad_fn is None:
        return None
    following = [None if node is None else type(node).__name__ for node, _ in tensor.grad_fn.next_functions]
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
        assert path in ("pytorch", "autograd")
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
        ways |= {("pytorch", code) for code in codes if code != "requires-grad" or "autograd" not in paths}
    return ways


def assert_went(ways: set[tuple[str, str]], reason: str | tuple[str, ...]) -> None:
    """Asserts that the ways of some calls are what ``reason`` allows (see ``check``)."""
    assert ways, "the operator was not called"
    # A call that PyTorch's own path hands on to the operator again (a mode does) is counted again, often as direct.
    for path, code in ways if len(ways) == 1 else ways - {("direct", "")}:
        assert_took(path, code, reason)
