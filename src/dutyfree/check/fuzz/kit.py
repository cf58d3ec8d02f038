"""What the rendered source of a case may name: kinds of tensors, modes, and what a generated body or formula does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Bare(Tensor):
    """A subclass that overrides nothing."""


class Plain(Tensor):
    """A subclass without ``__torch_function__``, as Parameter and Buffer are."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class Functional(Tensor):
    """A subclass with a ``__torch_function__`` of its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Wrapper(Tensor):
    """A subclass with a ``__torch_dispatch__`` that runs everything on the tensor inside."""

    inner: Tensor  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor, requires_grad: bool = False) -> "Wrapper":
        made: Wrapper = Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=requires_grad
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*unwrapped(args), **unwrapped(kwargs or {}))


def unwrapped(value: Any) -> Any:
    if isinstance(value, Wrapper):
        return value.inner
    if isinstance(value, (list, tuple)):
        return type(value)(map(unwrapped, value))
    return {name: unwrapped(member) for name, member in value.items()} if isinstance(value, dict) else value


def inference(tensor: Tensor) -> Tensor:
    """An inference tensor with the values of ``tensor``."""
    with torch.inference_mode():
        return tensor.clone()


def ordinary_keys(inference_tensor: Tensor) -> Tensor:
    """An inference tensor that the dispatcher takes for an ordinary one: only its missing version counter tells."""
    inference_tensor.data = torch.ones(3)
    return inference_tensor


def dual(tensor: Tensor) -> Tensor:
    """``tensor`` with a tangent where a forward-mode level is active, else as it is."""
    if forward_ad._current_level < 0:
        return tensor
    return forward_ad.make_dual(tensor, torch.ones_like(tensor))  # type: ignore[no-any-return]


def nested(*rows: Tensor, layout: torch.layout = torch.strided) -> Tensor:
    return torch.nested.nested_tensor(list(rows), layout=layout)


class DispatchLog(TorchDispatchMode):
    """Writes down every operator that reaches a dispatch mode."""

    def __init__(self, side: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.side = side

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Of PyTorch's own operators only the names: their arguments may be memory that nothing was written to yet.
        given = (args, kwargs or {}) if func.namespace == self.side.namespace else ()
        self.side.saw("dispatch mode", str(func), *given)
        return func(*args, **(kwargs or {}))


class FunctionLog(TorchFunctionMode):
    """Writes down every function that reaches a function mode."""

    def __init__(self, side: Any) -> None:
        super().__init__()
        self.side = side

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.side.saw("function mode", getattr(func, "__name__", str(func)), len(args), sorted(kwargs or {}))
        return func(*args, **(kwargs or {}))


def saved_tensors_log(side: Any) -> Any:
    """Saved tensor hooks that write down what they are given."""

    def pack(tensor: Tensor) -> Tensor:
        side.saw("pack", tensor)
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        side.saw("unpack", tensor)
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


@contextmanager
def profiling(side: Any) -> Iterator[None]:
    """The profiler; writes down the operator's own events."""
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        yield
    names = [side.text(event.name) for event in profile.function_events or ()]
    side.saw("profiled", [name for name in names if "NAMESPACE" in name])


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, depth first."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from tensors_in(member)


def first_tensor(*values: Any) -> Tensor:
    """The first tensor among a body's arguments, or a new one where there is none."""
    for tensor in tensors_in(values):
        return tensor
    return torch.ones(2)


def keep(ctx: Any, inputs: Any) -> None:
    """The usual ``setup_context``: saves the tensors and remembers where they stood."""
    ctx.save_for_backward(*tensors_in(inputs))
    ctx.inputs = [
        [isinstance(member, Tensor) for member in value] if isinstance(value, list) else isinstance(value, Tensor)
        for value in inputs
    ]


def gradients(ctx: Any, grads: Any) -> tuple[Any, ...]:
    """A gradient for every tensor that ``keep`` saved, None for the rest; differentiable in the saved tensors too."""
    total = sum((grad.sum() for grad in tensors_in(grads)), start=torch.zeros(()))
    saved = iter(ctx.saved_tensors)

    def one(is_tensor: bool) -> Tensor | None:
        if not is_tensor:
            return None
        tensor = next(saved)
        return tensor * total if tensor.is_floating_point() or tensor.is_complex() else None

    return tuple(list(map(one, place)) if isinstance(place, list) else one(place) for place in ctx.inputs)


def batched_anew(op: Any, in_dims: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """A vmap rule: the batch dimension goes first, and every tensor of the result has it there."""

    def moved(value: Any, dim: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [moved(member, inner) for member, inner in zip(value, dim or [None] * len(value), strict=True)]
        return value if dim is None or not isinstance(value, Tensor) else value.movedim(dim, 0)

    result = op(*(moved(value, dim) for value, dim in zip(args, in_dims, strict=False)), **kwargs)
    return result, first_dimensions(result)


def first_dimensions(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return type(result)(map(first_dimensions, result))
    return 0 if isinstance(result, Tensor) else None


def stand_ins(result: Any) -> Any:
    """The result of a fake kernel: tensors like those that the body returned."""
    if isinstance(result, (list, tuple)):
        return type(result)(map(stand_ins, result))
    return torch.zeros_like(result) if isinstance(result, Tensor) else result


class Trouble(Exception):
    """What generated bodies raise: no built-in, so that its type must survive."""


class Two(NamedTuple):
    """A tuple of a type of its own."""

    first: Any
    second: Any


class ListSubclass(list[Any]):
    """A list of a type of its own."""


class Text(str):
    """A str of a type of its own."""
