"""``fast_custom_op``: torch.library.custom_op at the price of the plain function."""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import torch
from torch._library import custom_ops
from torch._library.custom_ops import CustomOpDef

from dutyfree import _compile_caches, _core, _front, _registrations, _schema, _settings
from dutyfree._closures import made_again

P = ParamSpec("P")
R = TypeVar("R")
DeviceTypes = str | Sequence[str] | None
Tags = torch.Tag | Sequence[torch.Tag] | None


class CustomOp(CustomOpDef, _core.CallTarget, Generic[P, R]):
    """An operator made by :func:`fast_custom_op`.

    It is a ``torch.library.CustomOpDef``, with all its methods. Beyond that it keeps the function's ``__name__``,
    ``__qualname__``, ``__doc__``, ``__module__``, ``__wrapped__`` and signature, and can be copied and pickled (by its
    name).
    """

    # CustomOpDef sets and reads this attribute; here it is the place where the core looks for what a call goes to.
    _opoverload = _core.CallTarget._call_target

    def __init__(self, namespace: str, name: str, schema: str, fn: Callable[P, R], tags: Any = None) -> None:
        qualname = f"{namespace}::{name}"
        replaced_library: Any = custom_ops.OPDEF_TO_LIB.get(qualname)
        super().__init__(namespace, name, schema, fn, tags)
        # It runs while a kernel is disabled.
        self._init_fn = _registrations.counted(fn, self._opoverload._schema)
        if replaced_library is not None:
            # When the old library is collected, PyTorch drops what torch.ops caches under the names it defined, but
            # this name is the new operator's by now.
            replaced_library._op_defs.clear()
        _compile_caches.distinguish_schemas()
        functools.update_wrapper(self, fn, updated=())  # inspect.signature follows __wrapped__
        _front.register_builtin(self, qualname)

    def _register_to_dispatcher(self, tags: Sequence[torch.Tag]) -> None:
        with _registrations.listen(self._lib) as registered:
            super()._register_to_dispatcher(tags)
        self._operator: _core.Operator | None = None
        if _settings.enabled():
            self._operator = _core.Operator(self._qualname)
            _registrations.know(self._operator, self, registered)
            _front.attach(self._opoverload, self._operator)
            _skip_the_frame_of_call()

    def register_kernel(self, device_types: DeviceTypes, fn: Callable[..., Any] | None = None, /) -> Callable[..., Any]:
        """As ``CustomOpDef.register_kernel``; device types may be in upper case."""
        register = super().register_kernel(_lower(device_types))

        def inner(fn: Callable[..., Any]) -> Callable[..., Any]:
            with _registrations.listen(self._lib) as registered:
                register(_registrations.counted(fn, self._opoverload._schema))
            if self._operator is not None:
                _registrations.know(self._operator, self, registered)
            return fn

        return inner if fn is None else inner(fn)

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def __copy__(self) -> "CustomOp[P, R]":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "CustomOp[P, R]":
        return self

    def __reduce__(self) -> tuple[Callable[[str], CustomOpDef], tuple[str]]:
        return (_by_name, (self._qualname,))


_PLAIN_CALL: Any = CustomOpDef.__call__


def _skip_the_frame_of_call() -> None:
    """Let calls of operators skip the Python frame of ``__call__``, unless someone put another function there.

    Not only once: a patch that has come and gone has taken CPython's slot with it.
    """
    if CustomOp.__call__ is _PLAIN_CALL:
        _core.enable_vectorcall(CustomOp)


def _by_name(qualname: str) -> CustomOpDef:
    """The operator of that name in this process; unpickling ends here."""
    definition: CustomOpDef | None = custom_ops.OPDEFS.get(qualname)
    if definition is None:
        raise LookupError(
            f"{qualname} is not registered in this process. Import the module that defines it before unpickling."
        )
    return definition


def _lower(device_types: DeviceTypes) -> DeviceTypes:
    if device_types is None:
        return None
    return device_types.lower() if isinstance(device_types, str) else [name.lower() for name in device_types]


@overload
def fast_custom_op(
    name: str,
    fn: None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    device_types: DeviceTypes = None,
    schema: str | None = None,
    tags: Tags = None,
) -> Callable[[Callable[P, R]], CustomOp[P, R]]: ...


@overload
def fast_custom_op(
    name: str,
    fn: Callable[P, R],
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    device_types: DeviceTypes = None,
    schema: str | None = None,
    tags: Tags = None,
) -> CustomOp[P, R]: ...


def fast_custom_op(
    name: str,
    fn: Callable[P, R] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    device_types: DeviceTypes = None,
    schema: str | None = None,
    tags: Tags = None,
) -> CustomOp[P, R] | Callable[[Callable[P, R]], CustomOp[P, R]]:
    """Make a custom operator of a Python function; a drop-in for :func:`torch.library.custom_op`.

    PyTorch registers the operator and defines what it does. The calls that need no more than the function (no gradient
    to record, no mode, no subclass, no override, …) run it directly; the others go PyTorch's own way.
    :func:`dutyfree.explain` tells which way a call goes and why.

    Args:
        name: ``"namespace::name"``.
        fn: The function. Without it the result is a decorator.
        mutates_args: Names of the arguments that the function writes to, or ``"unknown"``. One name may be a plain
            string.
        device_types: The device types that the function serves, in lower or upper case; None for all.
        schema: The schema, where it should not be inferred from the annotations.
        tags: ``torch.Tag`` or several.

    Returns:
        The operator, a :class:`CustomOp`.

    Raises:
        ValueError: The schema can't be inferred, or does not match ``mutates_args``; as PyTorch raises it.

    Example::

        >>> @fast_custom_op("mylib::scale", mutates_args=())
        ... def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
        ...     return x * factor
        >>> scale(torch.ones(2), 3.0)
        tensor([3., 3.])
    """
    if isinstance(mutates_args, str):
        mutates_args = mutates_args if mutates_args == "unknown" else (mutates_args,)
    elif isinstance(mutates_args, Iterator):
        mutates_args = tuple(mutates_args)  # it is read more than once
    caller = sys._getframe(1)

    def register(fn: Callable[P, R]) -> CustomOp[P, R]:
        inferred = schema or _schema.infer_where_pytorch_cannot(fn, mutates_args, tags, caller)
        mutated = mutates_args if inferred is schema or inferred is None else _schema.mutated_names(inferred)
        making = _custom_op_making(CustomOp)
        return making(  # type: ignore[no-any-return]
            name, fn, mutates_args=mutated, device_types=device_types, schema=inferred, tags=tags
        )

    return register if fn is None else register(fn)


def _custom_op_making(cls: type[CustomOpDef]) -> Callable[..., Any]:
    """torch.library.custom_op's own code, where the class it makes is ``cls``."""
    original: Any = custom_ops.custom_op
    return made_again(original, {**original.__globals__, "CustomOpDef": cls})
