"""DUTYFREE=audit: every call of a pure operator also goes PyTorch's way, and any difference raises.

An operator is pure if its schema mutates nothing. Its body then runs twice, with the same random numbers: what it does
beside its results, such as printing, happens twice as well. That PyTorch's way left the inputs as they were is checked,
too. Calls that go PyTorch's way anyway, and those that a mode, a transform or a tensor subclass sees, are not audited.
"""

import functools
import hashlib
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dutyfree import _core, _front
from dutyfree.check.outcome import Arguments, Side, describe, members_of, values_of, version_of
from dutyfree.errors import AuditError


class _Thread(threading.local):
    # Operators that a body calls are part of the audited call.
    auditing = False


_thread = _Thread()

# The path of the call is what another observer gets to see, or has a say in.
_SEEN_BY_OTHERS = {"dispatch-mode", "thread-state", "tensor-subclass", "tensor-key"}


def auditor_of(ours: _core.OpCallable, pytorch: Callable[..., Any]) -> Callable[..., Any] | None:
    """What is called instead of an operator's callable ``ours``: it calls that, and audits it.

    None for operators that are not pure, and for packets with several overloads, which are audited where they are
    called by themselves.
    """
    if _front.schema_of(ours.operator).is_mutable or ours.later:
        return None
    return functools.partial(_audited, ours, pytorch)


def _audited(ours: _core.OpCallable, pytorch: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    path, reason, *_ = ours.operator.explain(args, kwargs)
    if _thread.auditing or path == "pytorch" or reason in _SEEN_BY_OTHERS:
        return ours(*args, **kwargs)
    _thread.auditing = True
    try:
        return _compared(ours, pytorch, Arguments(args, kwargs), path)
    finally:
        _thread.auditing = False


def _compared(ours: _core.OpCallable, pytorch: Callable[..., Any], arguments: Arguments, path: str) -> Any:
    name = ours.operator.name
    inputs = list(members_of(arguments))
    tensors = [member for member in inputs if isinstance(member, Tensor)]
    restore_random_numbers = _random_numbers(arguments)
    before = [(_digest(tensor), version_of(tensor)) for tensor in tensors]
    expected = _outcome(pytorch, arguments)
    for number, (tensor, was) in enumerate(zip(tensors, before, strict=True)):
        if (_digest(tensor), version_of(tensor)) != was:
            raise AuditError(f"{name} wrote to tensor {number} of its arguments, which its schema says it does not.")
    restore_random_numbers()
    found = _outcome(ours, arguments)
    side = _Side(name.partition("::")[0], name, None)  # type: ignore[arg-type]
    differences = [
        *_differences("error", _described_error(expected[1]), _described_error(found[1])),
        *_differences("result", describe(expected[0], side, inputs), describe(found[0], side, inputs)),
    ]
    if differences:
        raise AuditError(f"{name}, {path} path, differs from PyTorch: {'; '.join(differences)}")
    if found[1] is not None:
        raise found[1]
    return found[0]


def _differences(what: str, theirs: Any, ours: Any) -> list[str]:
    """The parts of two descriptions that differ, each in words."""
    if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys():
        parts = [(f"{what}'s {key}", theirs[key], ours[key]) for key in theirs]
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        parts = [(f"{what} {number}", *pair) for number, pair in enumerate(zip(theirs, ours, strict=True))]
    else:
        return [] if theirs == ours else [f"{what}: {theirs} by PyTorch, {ours} here"]
    return [difference for part in parts for difference in _differences(*part)]


def _outcome(run: Callable[..., Any], arguments: Arguments) -> tuple[Any, Exception | None]:
    try:
        return run(*arguments.args, **arguments.kwargs), None
    except Exception as error:
        return None, error


def _described_error(error: Exception | None) -> tuple[str, str] | None:
    return None if error is None else (type(error).__name__, str(error))


class _Side(Side):
    def values(self, tensor: Tensor) -> Any:
        # Memory that nobody wrote to holds anything.
        uninitialised = self.name.removeprefix("aten::").startswith(("empty", "new_empty"))
        return None if uninitialised else _digest(tensor)


def _digest(tensor: Tensor) -> object:
    """The bytes of a tensor's elements, in short."""
    if tensor.layout is not torch.strided or tensor.is_quantized or not _has_bytes(tensor):
        return values_of(tensor)
    with torch.no_grad():
        elements = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu().view(-1)
        return hashlib.blake2b(elements.view(torch.uint8).numpy().tobytes()).hexdigest() if elements.numel() else ""


def _has_bytes(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type in ("cpu", "cuda")


def _random_numbers(arguments: Arguments) -> Callable[[], None]:
    """A function that brings all generators back to where they are now."""
    generators = [
        value for value in (*arguments.args, *arguments.kwargs.values()) if isinstance(value, torch.Generator)
    ]
    states = [generator.get_state() for generator in generators]
    cpu, python = torch.get_rng_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None

    def restore() -> None:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        torch.set_rng_state(cpu)
        random.setstate(python)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        if numpy is not None:
            numpy.random.set_state(numpy_state)

    return restore
