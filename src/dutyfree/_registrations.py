"""Recognises kernels that are Python functions: those of torch's CustomOpDef, and any others.

``CustomOpDef`` hands its kernels to ``Library.impl``. Where dutyfree makes the operator itself, listening there tells,
for each kernel, the dispatch key and the Python function; the kernels of operators that others registered are read out
of the dispatcher. Whether a function is one of custom_op's that this code knows is decided by its qualified name, so
that an unknown version of torch loses speed and nothing else.
"""

import functools
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from dutyfree import _core, _gradients
from dutyfree._closures import closure_of, made_again

Kernel = Callable[..., Any]

# One listener at a time: it stands in the library's own `impl`. Reentrant, since a registration may make operators.
_listening = threading.RLock()

_AUTOGRAD = "make_autograd_impl.<locals>.autograd_impl"
_VERSION_BUMP = "CustomOpDef._register_mutation_version_bump.<locals>.adinplaceorview_impl"
_BACKEND = "CustomOpDef.register_kernel.<locals>.inner.<locals>.backend_impl"
_COUNTED = "__dutyfree_body__"
_BODY = "CustomOpDef.register_kernel.<locals>.inner.<locals>.wrapped_fn"


@contextmanager
def listen(library: Any) -> Iterator[list[tuple[str, Kernel]]]:
    """Collect the (dispatch key, function) of every ``library.impl`` call inside the block."""
    heard: list[tuple[str, Kernel]] = []
    with _listening:
        impl = library.impl

        def listening(name: Any, function: Kernel, dispatch_key: str = "", **options: Any) -> Any:
            result = impl(name, function, dispatch_key, **options)
            heard.append((dispatch_key, function))
            return result

        library.impl = listening
        try:
            yield heard
        finally:
            del library.impl


def know(operator: _core.Operator, definition: CustomOpDef, registered: list[tuple[str, Kernel]]) -> None:
    """Tell the core what the kernels do that were registered just now. None of them may be overridden yet."""
    for key, function in registered:
        _know_kernel_of_custom_op(operator, key, function, definition, _gradients.prepare)


def learn(operator: _core.Operator) -> list[str]:
    """Tell the core what the kernels do that are in force for an operator that someone else registered.

    Those are the Python ones, and the C++ ones with a direct entry.

    Returns the dispatch keys with a Python kernel that can't be read.
    """
    operator.know_direct_kernels()
    kernels_are_readable()
    unread = []
    for key, function, with_keyset, is_python in operator.registered_kernels():
        # Fake kernels don't count: many operators of PyTorch's own have a Python one, and none is called for its speed.
        if not is_python or key == "Meta" or operator.knows(key):
            continue
        if function is None:
            unread.append(key)
            continue
        of_custom_op = _know_kernel_of_custom_op(operator, key, function, None, _gradients.prepare_as_it_is)
        if not of_custom_op and not with_keyset:
            _know_function(operator, key, function)
    return unread


def _know_kernel_of_custom_op(
    operator: _core.Operator,
    key: str,
    function: Kernel,
    definition: Any,
    prepare: Callable[[Kernel, Any], tuple[Callable[..., Any] | None, Any, bool]],
) -> bool:
    """Whether ``function`` is a kernel of CustomOpDef (or an autograd kernel of torch.library.register_autograd).

    ``definition`` is the CustomOpDef where it is known.
    """
    name = getattr(function, "__qualname__", "")
    if not isinstance(function, types.FunctionType) or name not in (_AUTOGRAD, _VERSION_BUMP, _BACKEND):
        return False
    if name == _AUTOGRAD and key == "Autograd":
        info = definition if definition is not None else _gradients.formula_of(function)
        operator.know_autograd(key, *prepare(function, info))
    elif name == _VERSION_BUMP and key == "ADInplaceOrView":
        operator.know_version_bump(key)
    elif name == _BACKEND:
        cells = closure_of(function)
        definition = definition if definition is not None else cells["self"].cell_contents
        # The kernel looks its function up by the device type in its closure, which a registration for several devices
        # changes as it goes on: in the end it is the last one for all of them.
        device_type = cells["device_type"]
        operator.know_backend(
            key,
            definition._backend_fns,
            definition._disabled_kernel,
            device_type,
            uncounted(definition._init_fn),
            body_of,
            _judge(definition, function, device_type),
        )
    return True


def _know_function(operator: _core.Operator, key: str, function: Kernel) -> None:
    # torch.library.register_kernel's wrapper turns Dynamo off; the core does that itself, where Dynamo is on.
    if isinstance(function, types.FunctionType):
        disabling: Any = torch._compile._disable_dynamo
        if function.__code__ in disabling.__code__.co_consts:
            operator.know_body(key, closure_of(function)["fn"].cell_contents, True)
            return
    operator.know_body(key, function, False)


@functools.cache
def kernels_are_readable() -> bool:
    """Whether this torch lays out its kernels as the core knows it, which two kernels of ours tell."""

    def plain(x: torch.Tensor) -> None: ...

    def keyed(keyset: torch.DispatchKeySet, x: torch.Tensor) -> None: ...

    library = torch.library.Library("dutyfree", "FRAGMENT")
    try:
        library.define("probe(Tensor x) -> ()")
        library.impl("probe", plain, "CPU")
        library.impl("probe", keyed, "AutogradCPU", with_keyset=True)
        return _core.confirm_python_kernels(_core.Operator("dutyfree::probe"), "CPU", plain, "AutogradCPU", keyed)
    finally:
        library._destroy()


def body_of(entry: Kernel) -> tuple[Kernel, object]:
    """The user's function inside an entry of ``CustomOpDef._backend_fns``, and its key in ``_disabled_kernel``.

    The entry turns Dynamo off and heeds ``set_kernel_enabled``; the core does both itself. Where it is built in another
    way, it is the function, under a key that is never disabled.
    """
    inner = getattr(entry, "__wrapped__", None)
    if isinstance(inner, types.FunctionType) and inner.__qualname__ == _BODY:
        cells = closure_of(inner)
        if {"fn", "device_type"} <= cells.keys():
            return uncounted(cells["fn"].cell_contents), cells["device_type"].cell_contents
    return entry, ...


def uncounted(body: Kernel) -> Kernel:
    """What ``counted`` was given."""
    return getattr(body, _COUNTED, body)


def counted(body: Kernel, schema: torch.FunctionSchema) -> Kernel:
    """``body``, but more results than ``schema`` has raise. PyTorch 2.13 reads past the schema's end and crashes.

    It serves PyTorch's own path; on the direct path the core counts, and runs the body itself.
    """
    expected = len(schema.returns)
    if expected < 2:
        return body

    @functools.wraps(body)
    def counting(*args: Any, **kwargs: Any) -> Any:
        result = body(*args, **kwargs)
        if isinstance(result, (tuple, list)) and len(result) > expected:
            raise RuntimeError(
                f"Expected the kernel of {schema.name} to return {expected} values, as its schema says, but it "
                f"returned {len(result)}. Schema: {schema}"
            )
        return result

    setattr(counting, _COUNTED, body)
    return counting


class _AlreadyRun:
    """Stands for a CustomOpDef whose body has run: everything is the definition's but the body, which yields the
    result."""

    def __init__(self, definition: CustomOpDef, device_type: str | None, result: object) -> None:
        self._definition = definition
        body = lambda *args, **kwargs: result  # noqa: E731
        # PyTorch's message names the module of this function.
        body.__module__ = definition._backend_fns[device_type].__module__
        self._backend_fns = {device_type: body}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._definition, name)


def _judge(
    definition: CustomOpDef, kernel: types.FunctionType, device_type: types.CellType
) -> Callable[[object, tuple[Any, ...], dict[str, Any]], object]:
    """PyTorch's own backend wrapper over a body that has run already: its checks and its errors, word for word."""

    def judge(result: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        return made_again(kernel, self=_AlreadyRun(definition, device_type.cell_contents, result))(*args, **kwargs)

    return judge
