"""``load_library``: operators whose kernels are C++ functions, written with dutyfree/op.h, as Python callables."""

import ctypes
import difflib
import inspect
import keyword
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload, dl_open_guard

from dutyfree import _compile_caches, _core, _front, _settings
from dutyfree.accelerate import accelerate

# include/dutyfree/op.h looks at the first and exports the others.
_LOADS = "DUTYFREE_LOADS_LIBRARY"
_ERROR = "dutyfree_load_error"
_DEFINED = "dutyfree_defined_operators"

# Held while the process's environment says that dutyfree loads a library.
_loading = threading.RLock()


class CppOp(_core.CallTarget):
    """An operator of a library that :func:`load_library` has loaded. Calling it calls the operator.

    There is one object for each operator; it can be copied and pickled (by its name). ``_opoverload`` is PyTorch's
    object for the same operator, ``torch.ops.namespace.name.default``, for whatever takes that. ``__doc__`` is the
    schema.

    The ``register_…`` methods are those of :mod:`torch.library` for this operator: what the C++ block did not register
    can be written in Python.
    """

    # For dutyfree.explain, and for whoever knows torch.library.CustomOpDef; the core looks here for a call's target.
    _opoverload = _core.CallTarget._call_target

    def __init__(self, overload: OpOverload) -> None:
        self._opoverload = overload
        self._qualname = overload.name()
        schema = overload._schema
        self.__name__ = self.__qualname__ = self._qualname.rpartition("::")[2]
        self.__module__ = f"torch.ops.{overload.namespace}"
        self.__doc__ = str(schema)
        signature = _signature_of(schema)
        if signature is not None:
            self.__signature__ = signature
        _compile_caches.distinguish_schemas()
        _front.register_builtin(self, self._qualname.partition(".")[0])

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._opoverload(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<CppOp {self.__doc__}>"

    def __copy__(self) -> "CppOp":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "CppOp":
        return self

    def __reduce__(self) -> tuple[Callable[[str], "CppOp"], tuple[str]]:
        return (_by_name, (self._qualname,))

    def register_kernel(
        self, device_types: str | Iterable[str] | None, fn: Callable[..., Any] | None = None, /
    ) -> Callable[..., Any]:
        """As :func:`torch.library.register_kernel`: a Python function for device types that have no C++ kernel.

        Args:
            device_types: ``"cpu"``, ``"cuda"``, … or several; None for all.
            fn: The function. Without it the result is a decorator.
        """
        types: Any = device_types if device_types is None or isinstance(device_types, str) else list(device_types)
        return _registering(lambda fn: torch.library.register_kernel(self._qualname, types, fn), fn)

    def register_fake(self, fn: Callable[..., Any] | None = None, /) -> Callable[..., Any]:
        """As :func:`torch.library.register_fake`: makes the results' shapes and dtypes without data.

        Raises:
            RuntimeError: The C++ block has a fake kernel already, as PyTorch raises it.
        """
        return _registering(lambda fn: torch.library.register_fake(self._qualname, fn), fn)

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """As :func:`torch.library.register_autograd`: the formula of the gradient. The operator may mutate nothing."""
        torch.library.register_autograd(self._qualname, backward, setup_context=setup_context)

    def register_vmap(self, fn: Callable[..., Any] | None = None, /) -> Callable[..., Any]:
        """As :func:`torch.library.register_vmap`: the rule for :func:`torch.vmap`."""
        return _registering(lambda fn: torch.library.register_vmap(self._qualname, fn), fn)

    def register_autocast(self, device_type: str, cast_inputs: torch.dtype, /) -> None:
        """As :func:`torch.library.register_autocast`: inputs become ``cast_inputs`` under autocast."""
        torch.library.register_autocast(self._qualname, device_type, cast_inputs)


_PLAIN_CALL: Any = CppOp.__call__


def _registering(register: Callable[[Callable[..., Any]], object], fn: Callable[..., Any] | None) -> Callable[..., Any]:
    def inner(fn: Callable[..., Any]) -> Callable[..., Any]:
        register(fn)
        return fn

    return inner if fn is None else inner(fn)


def _signature_of(schema: torch.FunctionSchema) -> inspect.Signature | None:
    """The schema's arguments as Python has them; None where one's name can be no parameter's."""
    parameters = []
    for argument in schema.arguments:
        if keyword.iskeyword(argument.name):
            return None
        kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        parameters.append(inspect.Parameter(argument.name, kind, default=default))
    try:
        return inspect.Signature(parameters)
    except ValueError:
        return None  # one without a default follows one with it, which a schema may have


class Operators(Mapping[str, CppOp]):
    """The operators of a library: a mapping from ``"namespace::name"`` or ``"namespace::name.overload"``.

    An operator whose plain name no other of the library has is an attribute, too: ``operators.name``. (The methods of
    a mapping come first: an operator called ``get`` is found by its key alone.)
    """

    def __init__(self, path: str, operators: Iterable[CppOp]) -> None:
        self._path = path
        self._operators = {operator._qualname: operator for operator in operators}

    def __getitem__(self, name: str) -> CppOp:
        try:
            return self._operators[name]
        except KeyError:
            raise KeyError(f"{name}: not an operator of {self._path}, which has {self._names()}.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._operators)

    def __len__(self) -> int:
        return len(self._operators)

    def __getattr__(self, name: str) -> CppOp:
        if name.startswith("_"):
            raise AttributeError(name)  # what copying and pickling ask for, before there is anything to look in
        named = self._named(name)
        if len(named) == 1:
            return named[0]
        if named:
            names = ", ".join(operator._qualname for operator in named)
            raise AttributeError(
                f"{name} may be {names}: take one by its whole name, operators[{named[0]._qualname!r}]."
            )
        close = difflib.get_close_matches(name, self.__dir__(), 1)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise AttributeError(f"{name}: not an operator of {self._path}, which has {self._names()}.{meant}")

    def __dir__(self) -> list[str]:
        plain = {_plain_name(name) for name in self._operators}
        return sorted({*super().__dir__(), *(name for name in plain if len(self._named(name)) == 1)})

    def __repr__(self) -> str:
        return f"<Operators of {self._path}: {self._names()}>"

    def _named(self, name: str) -> list[CppOp]:
        return [operator for key, operator in self._operators.items() if _plain_name(key) == name]

    def _names(self) -> str:
        return ", ".join(self._operators) or "none"


def _plain_name(qualname: str) -> str:
    return qualname.rpartition("::")[2].partition(".")[0]


def load_library(path: str | os.PathLike[str]) -> Operators:
    """Load a shared library whose operators are written with ``dutyfree/op.h``, and accelerate them.

    Args:
        path: The library's file. It may have been loaded before.

    Returns:
        The operators, an :class:`Operators`: ``load_library(path).axpy(x, y)``.

    Raises:
        OSError: There is no such file, or the system's loader refuses it; for instance for symbols of another torch.
        RuntimeError: A ``DUTYFREE_LIBRARY`` block did not register its operators (two have one name, or a kernel does
            not fit its schema), which are then absent; or the file is no library that includes ``dutyfree/op.h``.
    """
    path = os.path.realpath(path)
    library = _open(path)
    error = _text(library, _ERROR)
    if error:
        raise RuntimeError(f"{path}: its operators could not be registered. {error}")
    return Operators(path, [operator_named(name) for name in sorted(_text(library, _DEFINED).splitlines())])


def _open(path: str) -> ctypes.CDLL:
    if not Path(path).exists():
        raise FileNotFoundError(f"no shared library at {path}.")
    # Let the library's blocks keep their errors for us; without this an error ends the process.
    with _loading, _settings.variable(_LOADS, path), dl_open_guard():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            raise OSError(
                f"could not load {path}: {error}. Likely causes: 1. it was compiled for another torch than "
                f"{torch.__version__} or another C++11 ABI (undefined symbols), compile it anew; 2. a library that it "
                "needs is not found."
            ) from error
    torch.ops.loaded_libraries.add(path)
    if not hasattr(library, _ERROR):
        raise RuntimeError(
            f"{path} has no operators of dutyfree's: none of its source files includes dutyfree/op.h. It is loaded; "
            "for operators of TORCH_LIBRARY use torch.ops.load_library and dutyfree.accelerate."
        )
    return library


def _text(library: ctypes.CDLL, function: str) -> str:
    asked = library[function]  # not cached on the object
    asked.restype = ctypes.c_char_p
    asked.argtypes = ()
    text: bytes = asked()
    return text.decode(errors="replace")


# One object for each operator, for the life of the process, as the libraries' own registrations.
_operators: dict[str, CppOp] = {}


def operator_named(qualname: str) -> CppOp:
    """The object for an operator that PyTorch has, accelerated."""
    namespace, _, name = qualname.partition("::")
    name, _, overload_name = name.partition(".")
    overload = getattr(getattr(getattr(torch.ops, namespace), name), overload_name or "default")
    accelerate(overload)
    with _loading:
        operator = _operators.get(qualname)
        if operator is None or operator._opoverload is not overload:
            operator = _operators[qualname] = CppOp(overload)
    # Not only once: a patch of `__call__` that has come and gone has taken CPython's slot with it.
    if _settings.enabled() and CppOp.__call__ is _PLAIN_CALL:
        _core.enable_vectorcall(CppOp)
    return operator


def _by_name(qualname: str) -> CppOp:
    """The operator of that name in this process; unpickling ends here."""
    operator = _operators.get(qualname)
    if operator is None:
        raise LookupError(
            f"{qualname} is not loaded in this process. Load its library (dutyfree.load_library), or import the module "
            "that does, before unpickling."
        )
    return operator
