"""Faults for the fuzzer to find: each stands in place of fast_custom_op and makes operators wrong in one way."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

import dutyfree
from dutyfree import fast_custom_op

Body = Callable[..., Any]


class Faulty:
    """An operator whose calls go through ``around``; everything else is the operator's."""

    def __init__(self, op: Any, around: Callable[..., Any]) -> None:
        self._op = op
        self._around = around

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._around(self._op, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


def with_body(change: Callable[..., Any]) -> Callable[..., Any]:
    """An operator whose body is called by ``change(body, schema, args, kwargs)``."""

    @functools.wraps(change)
    def register(name: str, body: Body, **options: Any) -> Any:
        made: list[Any] = []

        @functools.wraps(body)
        def changed(*args: Any, **kwargs: Any) -> Any:
            return change(body, made[0]._opoverload._schema, args, kwargs) if made else body(*args, **kwargs)

        made.append(fast_custom_op(name, changed, **options))
        return made[0]

    return register


def with_call(around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(around)
    def register(name: str, body: Body, **options: Any) -> Any:
        return Faulty(fast_custom_op(name, body, **options), around)

    return register


@with_call
def version_is_not_bumped(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    tensors = [t for t in _pytree.tree_leaves((args, kwargs)) if type(t) is Tensor and not t.is_inference()]
    with torch.autograd._unsafe_preserve_version_counter(tuple(tensors)):
        return op(*args, **kwargs)


@with_call
def function_modes_are_ignored(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunction():
        return op(*args, **kwargs)


@with_call
def dispatch_modes_are_ignored(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    with torch._C._DisableTorchDispatch():
        return op(*args, **kwargs)


@with_call
def autocast_rules_are_ignored(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return op(*args, **kwargs)


@with_call
def requires_grad_is_ignored(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    return _pytree.tree_map_only(Tensor, lambda t: t.detach() if t.grad_fn is not None else t, op(*args, **kwargs))


def aliases_are_allowed(name: str, body: Body, **options: Any) -> Any:
    returned: list[Any] = []

    @functools.wraps(body)
    def noted(*args: Any, **kwargs: Any) -> Any:
        returned[:] = [body(*args, **kwargs)]
        return returned[0]

    def around(op: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return op(*args, **kwargs)
        except RuntimeError as error:
            if "must not also be an input" in str(error):
                return returned[0]
            raise

    return Faulty(fast_custom_op(name, noted, **options), around)


@with_body
def a_tuple_stays_a_tuple(body: Body, schema: Any, args: Any, kwargs: Any) -> Any:
    return body(*(tuple(value) if isinstance(value, list) else value for value in args), **kwargs)


@with_body
def an_int_for_a_float_stays_an_int(body: Body, schema: Any, args: Any, kwargs: Any) -> Any:
    return body(*(2 if type(value) is float and value == 2.0 else value for value in args), **kwargs)


@with_body
def defaults_are_passed_to_the_body(body: Body, schema: Any, args: Any, kwargs: Any) -> Any:
    for argument in schema.arguments[len(args) :]:
        if argument.has_default_value():
            kwargs.setdefault(argument.name, argument.default_value)
    return body(*args, **kwargs)


@with_body
def the_body_runs_above_autograd(body: Body, schema: Any, args: Any, kwargs: Any) -> Any:
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)):
        return body(*args, **kwargs)


def a_list_is_not_copied(name: str, body: Body, **options: Any) -> Any:
    given: list[Any] = []

    @functools.wraps(body)
    def uncopied(*args: Any, **kwargs: Any) -> Any:
        originals = {id(value[0]): value for value in given if isinstance(value, list) and value}
        return body(
            *(originals.get(id(value[0]), value) if isinstance(value, list) and value else value for value in args),
            **kwargs,
        )

    def around(op: Any, /, *args: Any, **kwargs: Any) -> Any:
        given[:] = args
        return op(*args, **kwargs)

    return Faulty(fast_custom_op(name, uncopied, **options), around)


class _NeedsNothing(dutyfree.CustomOp[..., Any]):
    def register_autograd(self, backward: Any, /, *, setup_context: Any = None) -> None:
        if setup_context is None:
            return super().register_autograd(backward)

        def wrong(ctx: Any, *grads: Any) -> Any:
            ctx.needs_input_grad = tuple(True for _ in ctx.needs_input_grad)
            return backward(ctx, *grads)

        return super().register_autograd(wrong, setup_context=setup_context)


def needs_input_grad_is_always_true(name: str, body: Body, **options: Any) -> Any:
    op = fast_custom_op(name, body, **options)
    op.__class__ = _NeedsNothing
    return op


def later_kernels_are_ignored(name: str, body: Body, **options: Any) -> Any:
    faulty = Faulty(fast_custom_op(name, body, **options), lambda op, /, *args, **kwargs: op(*args, **kwargs))
    faulty.register_kernel = lambda device_types, fn=None: fn or (lambda fn: fn)  # type: ignore[attr-defined]
    return faulty


FAULTS: tuple[Callable[..., Any], ...] = (
    version_is_not_bumped,
    function_modes_are_ignored,
    dispatch_modes_are_ignored,
    autocast_rules_are_ignored,
    requires_grad_is_ignored,
    aliases_are_allowed,
    a_tuple_stays_a_tuple,
    an_int_for_a_float_stays_an_int,
    defaults_are_passed_to_the_body,
    the_body_runs_above_autograd,
    a_list_is_not_copied,
    needs_input_grad_is_always_true,
    later_kernels_are_ignored,
)
