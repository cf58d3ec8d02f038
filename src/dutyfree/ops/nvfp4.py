"""The operators on NVFP4, and what is chosen and kept for them on the CPU.

NVFP4 keeps a matrix as e2m1 codes, two in a byte (element 2i in the low half of byte i), with an e4m3 scale factor for
each 16 elements of a row and one float32 global scale g. An element's value is ``e2m1 * e4m3 / g``.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dutyfree import _core
from dutyfree.cpp import CppOp, operator_named

_TRTLLM = ("trtllm::tunable_fp4_quantize", "trtllm::nvfp4_gemm")
_WHOSE = "DUTYFREE_TRTLLM_OPS"


# What force_target was asked for and has not ended, the last counts; they need not end in the order that they began in.
_forced: list[list[str]] = []
_forcing = threading.Lock()


def _define() -> None:
    whose = os.environ.get(_WHOSE, "ours")
    if whose not in ("ours", "keep"):
        raise ValueError(f"{_WHOSE}={whose!r}: expected 'ours' or 'keep'.")
    taken = [name for name in _TRTLLM if torch._C._jit_get_schemas_for_operator(name)]
    if taken and whose != "keep":
        raise RuntimeError(
            f"{' and '.join(taken)} exist{'s' if len(taken) == 1 else ''} already, most likely TensorRT-LLM's. Import "
            f"dutyfree.ops in a process without them, or set {_WHOSE}=keep: then they stay in place, and dutyfree.ops "
            "has them accelerated under its names."
        )
    for name in (*_TRTLLM, "dutyfree"):
        if name not in taken:
            _core.nvfp4_define_operators(name)


_define()

#: ``tunable_fp4_quantize(input, input_scale, scaling_vector_size=16, is_sf_swizzled_layout=False) -> list[Tensor]``
#:
#: Rows of numbers to NVFP4. ``input``: float16, bfloat16 or float8_e4m3fn (on the CPU float32, too), of shape (…, K),
#: two dimensions or more, contiguous, K a multiple of 16. ``input_scale``: float32, the global scale g = 448 · 6 /
#: amax, one element, or one a row; it is multiplied with. Returns the codes, uint8 of shape (…, K/2), and the scale
#: factors, e4m3 as uint8 of shape (M · K/16,) where M is the number of rows, or swizzled for matrix units:
#: (round_up(M, 128) · round_up(K/16, 4),) with padding of zeros.
#:
#: Scale factors are e4m3(g · max|x| / 6), to nearest, ties to even, saturated; codes are e2m1(x · g / scale factor)
#: in the same way. A NaN becomes +6 and does not count for the maximum.
#:
#: Raises TypeError for other dtypes, ValueError for other shapes, strides, devices or sizes.
tunable_fp4_quantize: CppOp = operator_named("trtllm::tunable_fp4_quantize")

#: ``nvfp4_gemm(act_fp4, weight, act_sf, weight_scale, alpha, output_dtype, output_buffer_kind=0,
#: allowed_backends="cutlass,cublaslt,cuda_core", group=None, bias=None) -> Tensor``
#:
#: ``alpha`` times activations times the weight transposed, plus ``bias``. ``act_fp4``: codes (M, K/2); ``weight``:
#: codes (N, K/2); ``act_sf`` and ``weight_scale``: their swizzled scale factors; ``alpha``: float32, one element, 1 /
#: (g of the activations · g of the weight); ``output_dtype``: bfloat16, float16 or float32; ``bias``: (N,). The
#: result is (M, N).
#:
#: ``allowed_backends``: names, separated by commas, of which the tuner may choose; :func:`backends` lists the CPU's.
#: The default leaves the choice open. Names of backends that the device lacks are skipped.
#:
#: Raises TypeError for other dtypes, ValueError for shapes that do not fit, unknown backends, or none that is
#: available.
nvfp4_gemm: CppOp = operator_named("trtllm::nvfp4_gemm")

#: The same kernels under names that are always ours, ``dutyfree::tunable_fp4_quantize`` and ``dutyfree::nvfp4_gemm``:
#: with ``DUTYFREE_TRTLLM_OPS=keep`` those of ``trtllm`` may be someone else's.
own_quantize: CppOp = operator_named("dutyfree::tunable_fp4_quantize")
own_gemm: CppOp = operator_named("dutyfree::nvfp4_gemm")

#: ``fp4_dequantize(values, scale_factors, global_scale, dtype=torch.float32, is_sf_swizzled_layout=False) -> Tensor``
#:
#: The numbers that codes (…, K/2) stand for, of shape (…, K): e2m1 · e4m3 / g, rounded to float32 and then to
#: ``dtype`` (float32, bfloat16 or float16). ``global_scale``: float32, one element or one a row.
fp4_dequantize: CppOp = operator_named("dutyfree::fp4_dequantize")

#: ``swizzle_scale_factors(scale_factors) -> Tensor``: scale factors (M, K/16) in the order that matrix units read,
#: flat, padded with zeros to whole tiles of 128 rows and 4 columns. It is that of cuBLAS' block scaling and torchao's
#: ``to_blocked``.
swizzle_scale_factors: CppOp = operator_named("dutyfree::swizzle_scale_factors")

#: ``unswizzle_scale_factors(scale_factors, rows, columns) -> Tensor``: the way back, to (rows, columns) with columns
#: = K/16.
unswizzle_scale_factors: CppOp = operator_named("dutyfree::unswizzle_scale_factors")


def global_scale(x: torch.Tensor) -> torch.Tensor:
    """The global scale with which ``x`` uses the whole range of NVFP4: 448 · 6 / max|x|, float32, of shape (1,).

    A tensor of zeros, or without elements, has 1; one with a NaN has a NaN.
    """
    if x.numel() == 0:
        return torch.ones(1, device=x.device)
    wide = x.float() if x.dtype == torch.float8_e4m3fn else x  # which has no abs()
    largest = wide.abs().amax().float()
    scale = (448.0 * 6.0 / largest).clamp(max=torch.finfo(torch.float32).max)
    return torch.where(largest == 0, 1.0, scale).reshape(1)


def available_targets() -> list[str]:
    """The instruction sets for which there are CPU kernels and that this machine has, the best last."""
    return _core.nvfp4_cpu_targets()


def backends() -> list[str]:
    """The names that ``allowed_backends`` may have for this machine's CPU.

    They are its targets and ``"bf16_mm"``, which decodes the weight to bfloat16 once and leaves the product to PyTorch.
    It rounds to bfloat16, so for results of other dtypes it runs only where no other name is allowed.
    """
    return _core.nvfp4_cpu_backends()


@contextmanager
def force_target(name: str | None) -> Iterator[None]:
    """Run only this target's CPU kernels, in the whole process, inside the ``with``; None: the best, as without it.

    Raises:
        ValueError: This machine can't run it.
    """
    entered = [name or ""]  # an object of its own, whatever others force
    with _forcing:
        _core.nvfp4_force_target(entered[0])
        _forced.append(entered)
    try:
        yield
    finally:
        with _forcing:
            _forced[:] = [other for other in _forced if other is not entered]
            _core.nvfp4_force_target(_forced[-1][0] if _forced else "")


def packed_weights() -> dict[str, int]:
    """What the CPU keeps of weights in its own order.

    ``entries``, their ``bytes``, the ``limit`` in bytes, and ``repacks``: how many times weights were packed since the
    process began.
    """
    entries, size, limit, repacks = _core.nvfp4_packed_weights()
    return {"entries": entries, "bytes": size, "limit": limit, "repacks": repacks}


def forget_packed_weights() -> None:
    """Drop them. Needed after a change of a weight that PyTorch does not count: through ``.data``, NumPy or DLPack."""
    _core.nvfp4_forget_packed_weights()


def limit_packed_weights(limit: int) -> None:
    """How many bytes they may take together; at first a quarter of the machine's memory.

    The longest unused go first.

    Raises:
        ValueError: The limit is negative.
    """
    if limit < 0:
        raise ValueError(f"limit_packed_weights({limit}): a number of bytes, from 0, is expected.")
    _core.nvfp4_limit_packed_weights(limit)
