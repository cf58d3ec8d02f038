"""Which operators ``accelerate`` and ``restore`` were asked for: rules over names; the last that fits counts."""

import os
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._library import custom_ops
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket, _OpNamespace

from dutyfree import _core, _registrations


@dataclass(frozen=True)
class Rule:
    """A target; ``covers`` says whether an operator ("ns::op" or "ns::op.overload") is part of it."""

    target: str | types.ModuleType | None
    covers: Callable[[str], bool] = field(compare=False)

    @property
    def namespace(self) -> str | None:
        """The only namespace with operators that it covers; None where there may be others."""
        return self.target.partition("::")[0] if isinstance(self.target, str) else None


# By the target that they are for, in the order in which they were last asked for.
_rules: dict[Rule, bool] = {}


def parse(target: Any) -> Rule:
    """The rule of a target of ``accelerate``."""
    if isinstance(target, _core.CallTarget):
        target = target._call_target
    elif isinstance(target, CustomOpDef):
        target = target._opoverload
    if isinstance(target, OpOverload):
        target = target.name()
    elif isinstance(target, OpOverloadPacket):
        target = target._qualified_op_name
    elif isinstance(target, _OpNamespace):
        target = target.name
    if target is None:
        return Rule(None, lambda name: True)
    if isinstance(target, types.ModuleType):
        return Rule(target, _Package(target).covers)
    if not isinstance(target, str):
        raise TypeError(
            f"expected an operator, an operator's name, a namespace, a module or None; {target!r} is a "
            f"{type(target).__name__}."
        )
    if "::" not in target:
        return Rule(target, lambda name: name.startswith(f"{target}::"))
    # "ns::op" stands for all its overloads.
    return Rule(target, lambda name: name == target or name.startswith(f"{target}."))


def add(rule: Rule, covered: bool) -> None:
    _rules.pop(rule, None)
    _rules[rule] = covered


def clear() -> None:
    _rules.clear()


def covered(name: str) -> bool:
    """Whether ``accelerate`` was asked for an operator, and ``restore`` not since."""
    return next((covered for rule, covered in reversed(_rules.items()) if rule.covers(name)), False)


def any_covered() -> bool:
    return any(_rules.values())


class _Package:
    """The operators that a package defines.

    It defines those of its own namespace (``torchvision::nms``), those whose function or kernel is one of its modules',
    and those that one of its files registered.
    """

    def __init__(self, module: types.ModuleType) -> None:
        self._name = module.__name__
        paths = getattr(module, "__path__", None)
        self._places = [f"{path}{os.sep}" for path in paths] if paths else [getattr(module, "__file__", None) or "?"]

    def covers(self, name: str) -> bool:
        if name.partition("::")[0] == self._name:
            return True
        definition = custom_ops.OPDEFS.get(name)
        if definition is not None:
            return self._has(definition._init_fn)
        operator, _, overload = name.partition(".")
        try:
            handle = torch._C._dispatch_find_schema_or_throw(operator, overload)
        except RuntimeError:
            return False
        return any(f"registered at {place}" in handle.debug() for place in self._places) or any(
            self._has(function) for _, function, *_ in _kernels_of(name)
        )

    def _has(self, function: Any) -> bool:
        module = getattr(function, "__module__", None) or ""
        return module == self._name or module.startswith(f"{self._name}.")


def _kernels_of(name: str) -> list[tuple[str, Any, bool, bool]]:
    _registrations.kernels_are_readable()
    try:
        return _core.Operator(name).registered_kernels()
    except RuntimeError:
        return []
