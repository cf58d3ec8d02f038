"""The published call trace of a denoising step, without a model: 1260 quantize and 840 gemm calls of empty kernels.

The counts are those of a host program with TensorRT-LLM's operators (LTX-2, 736 x 1280 pixels, 121 frames); they do not
follow from the model's structure, so that they are replayed as they are. An empty kernel returns tensors that exist
already: what a replay takes is what its calls cost, and beyond the functions' own calls, the tax of a registration.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from dutyfree.workloads.ltx2.registrations import Bodies, Operators, check_registration, define

QUANTIZE_CALLS = 1260
GEMM_CALLS = 840
# Which operator is called when was not published: three quantize and two gemm calls in turn make the numbers.
ROUNDS = 420

_ROWS, _COLUMNS, _WEIGHT_ROWS = 16, 64, 64


@dataclass(frozen=True)
class Arguments:
    """What the calls get: ``quantize``'s first four arguments and ``gemm``'s first six."""

    quantize: tuple[Tensor, Tensor, int, bool]
    gemm: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, torch.dtype]


@dataclass(frozen=True)
class Trace:
    """A step's calls by one registration's operators."""

    operators: Operators
    arguments: Arguments

    def replay(self) -> None:
        """One step. Inside ``torch.inference_mode()`` or not, as it is called."""
        quantize, gemm = self.operators.quantize, self.operators.gemm
        x, scale, vector_size, swizzled = self.arguments.quantize
        codes, weight, factors, weight_factors, alpha, dtype = self.arguments.gemm
        for _ in range(ROUNDS):
            quantize(x, scale, vector_size, swizzled)
            gemm(codes, weight, factors, weight_factors, alpha, dtype)
            quantize(x, scale, vector_size, swizzled)
            quantize(x, scale, vector_size, swizzled)
            gemm(codes, weight, factors, weight_factors, alpha, dtype)


def make_trace(registration: str, device: str = "cpu") -> Trace:
    """The trace by a registration, whose operators are in a namespace of its own: a process can have all of them.

    Args:
        registration: One of ``REGISTRATIONS``, or ``PLAIN`` for the functions themselves.
        device: Of the tensors.

    Raises:
        ValueError: There is no such registration.
    """
    check_registration(registration)
    return _made(registration, torch.device(device).type)


@functools.cache
def _made(registration: str, device: str) -> Trace:
    """Once for each pair, however it was asked for: names can be registered once."""
    namespace = f"ltx2_trace_{registration}_{device}"
    return Trace(define(registration, namespace, _empty_bodies(device)), _arguments(device))


def _arguments(device: str) -> Arguments:
    x = torch.ones(_ROWS, _COLUMNS, dtype=torch.bfloat16, device=device)
    one = torch.ones(1, device=device)
    codes, factors = _codes(_ROWS, device), _factors(device)
    return Arguments(
        (x, one, 16, True), (codes, _codes(_WEIGHT_ROWS, device), factors, _factors(device), one, torch.bfloat16)
    )


def _codes(rows: int, device: str) -> Tensor:
    return torch.zeros(rows, _COLUMNS // 2, dtype=torch.uint8, device=device)


def _factors(device: str) -> Tensor:
    """Swizzled scale factors of up to 128 rows: whole tiles of 128 rows and 4 columns."""
    return torch.zeros(128 * _COLUMNS // 16, dtype=torch.uint8, device=device)


def _empty_bodies(device: str) -> Bodies:
    """New functions, since CPython specialises each for what it sees."""
    codes, factors = _codes(_ROWS, device), _factors(device)
    result = torch.zeros(_ROWS, _WEIGHT_ROWS, dtype=torch.bfloat16, device=device)

    def tunable_fp4_quantize(
        input: Tensor, input_scale: Tensor, scaling_vector_size: int = 16, is_sf_swizzled_layout: bool = False
    ) -> list[Tensor]:
        return [codes, factors]

    def nvfp4_gemm(
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
        return result

    return Bodies(tunable_fp4_quantize, nvfp4_gemm)
