"""The calls that are timed: operators whose body does next to nothing, so that what remains is the price of the call.

Two of them have the signatures of a real NVFP4 host program, which makes 2,100 such calls in a step.
"""

# No `from __future__ import annotations` here: schemas are inferred from the annotations themselves.
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import Tensor

from dutyfree.bench.measure import Call

Values = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One kind of call. `make_function` returns a new function each time, since each candidate registers its own."""

    name: str
    title: str
    make_function: Callable[[], Callable[..., Any]]
    make_call: Callable[[torch.device], Call]
    mutates_args: tuple[str, ...] = field(default=())


def clone_function() -> Callable[..., Any]:
    def clone(x: Tensor) -> Tensor:
        return x.clone()

    return clone


def clone_call(device: torch.device) -> Call:
    return Call((torch.ones(4, device=device),), {})


def quantize_function() -> Callable[..., Any]:
    def quantize(
        input: Tensor, input_scale: Tensor, scaling_vector_size: int = 16, is_sf_swizzled_layout: bool = False
    ) -> list[Tensor]:
        return [input.clone(), input_scale.clone()]

    return quantize


def quantize_call(device: torch.device) -> Call:
    return Call((torch.ones(4, device=device), torch.ones(1, device=device), 16, True), {})


def gemm_function() -> Callable[..., Any]:
    def gemm(
        act_fp4: Tensor,
        weight: Tensor,
        act_sf: Tensor,
        weight_scale: Tensor,
        alpha: Tensor,
        output_dtype: torch.dtype,
        output_buffer_kind: int = 0,
        allowed_backends: str = "cutlass,cublaslt,cuda_core",
        group: Optional[Sequence[int]] = None,  # noqa: UP045  (infer_schema's own spelling)
        bias: Optional[Tensor] = None,  # noqa: UP045
    ) -> Tensor:
        return act_fp4.clone()

    return gemm


def gemm_tensors(device: torch.device) -> tuple[Tensor, ...]:
    codes = torch.zeros(4, dtype=torch.uint8, device=device)
    return codes, codes.clone(), codes.clone(), codes.clone(), torch.ones(1, device=device)


def gemm_call(device: torch.device) -> Call:
    return Call((*gemm_tensors(device), torch.bfloat16, 0, "cutlass"), {})


def gemm_keyword_call(device: torch.device) -> Call:
    return Call((*gemm_tensors(device), torch.bfloat16, 0), {"allowed_backends": "cutlass"})


def mutate_function() -> Callable[..., Any]:
    def mutate(x: Tensor, y: Tensor) -> None:
        pass

    return mutate


def mutate_call(device: torch.device) -> Call:
    return Call((torch.ones(4, device=device), torch.ones(4, device=device)), {})


# The argument types of the long signatures, in turn: the annotation and a value for a call.
_KINDS: list[tuple[Any, Callable[[torch.device], Any]]] = [
    (Tensor, lambda device: torch.ones(4, device=device)),
    (int, lambda device: 3),
    (float, lambda device: 0.5),
    (bool, lambda device: True),
    (Optional[Tensor], lambda device: None),  # noqa: UP045
]


def long_function(count: int) -> Callable[[], Callable[..., Any]]:
    def make() -> Callable[..., Any]:
        kinds = [_KINDS[index % len(_KINDS)][0] for index in range(count)]
        parameters = ", ".join(f"p{index}: kinds[{index}]" for index in range(count))
        namespace: Values = {"kinds": kinds, "Tensor": Tensor}
        exec(f"def many({parameters}) -> Tensor:\n    return p0.clone()\n", namespace)
        function: Callable[..., Any] = namespace["many"]
        return function

    return make


def long_call(count: int) -> Callable[[torch.device], Call]:
    return lambda device: Call(tuple(_KINDS[index % len(_KINDS)][1](device) for index in range(count)), {})


CASES = [
    Case("clone", "1 tensor, x.clone()", clone_function, clone_call),
    Case("list_result", "4 arguments, list of two tensors returned", quantize_function, quantize_call),
    Case("gemm", "10 arguments (nvfp4_gemm), 8 given", gemm_function, gemm_call),
    Case("gemm_keyword", "the same, one by keyword", gemm_function, gemm_keyword_call),
    Case("mutate", "mutating, two tensors, empty body", mutate_function, mutate_call, mutates_args=("x", "y")),
    Case("args14", "14 arguments", long_function(14), long_call(14)),
    Case("args51", "51 arguments", long_function(51), long_call(51)),
]
