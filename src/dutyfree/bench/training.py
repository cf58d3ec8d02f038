"""Calls that record a gradient: an operator with an autograd formula against a hand-written torch.autograd.Function.

Bodies and formulas do next to nothing, so that what remains is the price of making a node, and of running it.
"""

# No `from __future__ import annotations` here: schemas are inferred from the annotations themselves.
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dutyfree import fast_custom_op
from dutyfree.bench.candidates import SPELLINGS, require_path, spellings
from dutyfree.bench.measure import Block, Call, timed_block

BASELINE = "function"
CANDIDATES = [BASELINE, "custom_op", *SPELLINGS]
NAMESPACE = "dutyfree_bench_training"


@dataclass(frozen=True)
class TrainingCase:
    """One operator and a Function that does the same.

    `make` returns a new body, its backward and its setup_context each time; `function.apply` takes what `call_function`
    holds.
    """

    name: str
    title: str
    make: Callable[[], tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]]
    function: type[torch.autograd.Function]
    call: Callable[[], Call]
    call_function: Callable[[], Call]


def saved_operator() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    def body(x: Tensor) -> Tensor:
        return x.clone()

    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        (x,) = inputs
        ctx.save_for_backward(x)

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (_x,) = ctx.saved_tensors
        return grad

    return body, backward, setup_context


class SavedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (_x,) = ctx.saved_tensors
        return grad


def saved_call() -> Call:
    return Call((torch.ones(4, requires_grad=True),), {})


def norm_operator() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    def body(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
        return x.clone(), weight.clone()

    def setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.eps = keyword_only_inputs["eps"]

    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        _x, _weight = ctx.saved_tensors
        return first, second

    return body, backward, setup_context


class NormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return x.clone(), weight.clone()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, None]:
        _x, _weight = ctx.saved_tensors
        return first, second, None


def norm_call() -> Call:
    return Call((torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)), {"eps": 1e-5})


def norm_function_call() -> Call:
    call = norm_call()
    return Call((*call.args, 1e-5), {})


def list_operator() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    def body(xs: list[Tensor], scale: float = 1.0) -> list[Tensor]:
        return [x.clone() for x in xs]

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[0])
        ctx.scale = inputs[1]

    def backward(ctx: Any, grads: list[Tensor]) -> tuple[list[Tensor], None]:
        _saved = ctx.saved_tensors
        return grads, None

    return body, backward, setup_context


class ListFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: float, *xs: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*xs)
        ctx.scale = scale
        return tuple([x.clone() for x in xs])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        _saved = ctx.saved_tensors
        return None, *grads


def list_call() -> Call:
    return Call(([torch.ones(4, requires_grad=True) for _ in range(4)], 2.0), {})


def list_function_call() -> Call:
    tensors, scale = list_call().args
    return Call((scale, *tensors), {})


CASES = [
    TrainingCase("saved", "1 tensor, saved", saved_operator, SavedFunction, saved_call, saved_call),
    TrainingCase(
        "norm", "2 tensors saved, 2 results, 1 keyword", norm_operator, NormFunction, norm_call, norm_function_call
    ),
    TrainingCase(
        "list", "list of 4 tensors, list of 4 results", list_operator, ListFunction, list_call, list_function_call
    ),
]
FORWARD, BACKWARD = "forward", "forward + backward"
STEPS = [FORWARD, BACKWARD]


@functools.cache
def build(case: TrainingCase) -> dict[str, Callable[..., Any]]:
    """The candidates of a case by name. Its operators can be registered once in a process, so they are kept."""
    registers: dict[str, Callable[..., Any]] = {"custom_op": torch.library.custom_op, "dutyfree": fast_custom_op}
    operators: dict[str, Any] = {}
    for name, register in registers.items():
        body, backward, setup_context = case.make()
        operators[name] = register(f"{NAMESPACE}::{case.name}_{name}", body, mutates_args=())
        operators[name].register_autograd(backward, setup_context=setup_context)
    return {
        BASELINE: case.function.apply,
        "custom_op": operators["custom_op"],
        **spellings(operators["dutyfree"]),
    }


def forward_and_backward(candidate: Callable[..., Any], call: Call) -> Callable[..., Any]:
    """Calls the candidate, then the backward pass with gradients of ones."""
    results = candidate(*call.args, **call.kwargs)
    grads = [torch.ones_like(result) for result in results] if isinstance(results, (tuple, list)) else torch.ones(4)

    def step(*args: Any, **kwargs: Any) -> None:
        torch.autograd.backward(candidate(*args, **kwargs), grads)

    return step


def blocks(case: TrainingCase, step: str) -> dict[tuple[str, str], Block]:
    """A block for each (case, candidate) of one step."""
    result = {}
    for name, candidate in build(case).items():
        call = case.call_function() if name == BASELINE else case.call()
        if name.startswith("dutyfree."):
            require_path("autograd", case.name, name, candidate, call)
        timed = candidate if step == FORWARD else forward_and_backward(candidate, call)
        result[key_of(case, step), name] = timed_block(timed, call)
    return result


def key_of(case: TrainingCase, step: str) -> str:
    """The name of a row's case in the results."""
    return f"{case.name}, {step}"
