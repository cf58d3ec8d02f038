"""The NVFP4 operators on the CPU: beside PyTorch's products, the machine's limits, and operators that only allocate.

A weight of PyTorch's products is the NVFP4 weight decoded once, and its activations are in its dtype already. The pair
of operators quantizes its activations in each call, with a global scale that is known.
"""

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import dutyfree
from dutyfree import AutoTuner, ops
from dutyfree.bench import nvfp4_torch, peaks
from dutyfree.bench.candidates import require_path
from dutyfree.bench.cpp import SOURCES
from dutyfree.bench.environment import last_level_cache, vector_flags
from dutyfree.bench.errors import BenchmarkError
from dutyfree.bench.measure import Block, Call, timed_block
from dutyfree.bench.nvfp4_shapes import (
    BF16,
    COPY_32_MIB,
    FP32,
    GEMM,
    HOST_CANDIDATES,
    HOST_GEMM,
    HOST_QUANTIZE,
    INT8_SHARE,
    PAIR,
    PEAKS_CASE,
    QUANTIZE,
    QUANTIZE_CASE,
    QUANTIZED,
    SHAPES,
    TORCH_CASE,
    Shape,
    quantize_bytes,
)
from dutyfree.bench.results import Results
from dutyfree.cpp_build import build

Blocks = dict[tuple[str, str], Block]
BLOCK = 16


def tuned() -> contextlib.AbstractContextManager[Any]:
    """The autotuner chooses among backends for the calls inside, by measuring them now."""
    return dutyfree.autotune(repeats=3, warmup=1)


def chosen_backend(shape: Shape) -> str:
    """The backend that the tuner measured to be the fastest for a shape's bucket."""
    bucket = 1 << (shape.m.bit_length() - 1)
    for choice in AutoTuner.get().choices():
        if choice.operator == "trtllm::nvfp4_gemm" and choice.dims == (bucket, shape.n, shape.k):
            return choice.tactic
    return ops.nvfp4.available_targets()[-1]  # the only candidate, which is not measured


@dataclass(frozen=True)
class Weight:
    """A normal weight in NVFP4, and decoded."""

    values: Tensor
    scales: Tensor
    global_scale: Tensor
    bf16: Tensor
    fp32: Tensor


@functools.cache
def weight_of(n: int, k: int) -> Weight:
    """Kept for the process, since shapes share it."""
    given = torch.empty(n, k, dtype=torch.bfloat16).normal_()
    global_scale = ops.global_scale(given)
    values, scales = ops.tunable_fp4_quantize(given, global_scale, BLOCK, True)
    decoded = ops.fp4_dequantize(values, scales, global_scale, torch.float32, True)
    return Weight(values, scales, global_scale, decoded.bfloat16(), decoded)


def pair(x: Tensor, global_scale: Tensor, values: Tensor, scales: Tensor, alpha: Tensor) -> Tensor:
    """What a linear layer with a static scale does."""
    x_values, x_scales = ops.tunable_fp4_quantize(x, global_scale, BLOCK, True)
    result: Tensor = ops.nvfp4_gemm(x_values, values, x_scales, scales, alpha, torch.bfloat16)
    return result


def product_blocks(shape: Shape) -> Blocks:
    """A product by PyTorch and by the operators, which are tuned before they are timed."""
    weight = weight_of(shape.n, shape.k)
    x = torch.empty(shape.m, shape.k, dtype=torch.bfloat16).normal_()
    global_scale = ops.global_scale(x)
    alpha = torch.reciprocal(global_scale * weight.global_scale)
    quantize = Call((x, global_scale, BLOCK, True), {})
    with tuned():
        values, scales = ops.tunable_fp4_quantize(*quantize.args)
        gemm = Call((values, weight.values, scales, weight.scales, alpha, torch.bfloat16), {})
        ops.nvfp4_gemm(*gemm.args)
    for name, operator, call in ((QUANTIZE, ops.tunable_fp4_quantize, quantize), (GEMM, ops.nvfp4_gemm, gemm)):
        require_path("direct", shape.case, name, operator, call)
    return {
        (shape.case, BF16): timed_block(torch.mm, Call((x, weight.bf16.t()), {})),
        (shape.case, FP32): timed_block(torch.mm, Call((x.float(), weight.fp32.t()), {})),
        (shape.case, QUANTIZE): timed_block(ops.tunable_fp4_quantize, quantize),
        (shape.case, GEMM): timed_block(ops.nvfp4_gemm, gemm),
        (shape.case, PAIR): timed_block(pair, Call((x, global_scale, weight.values, weight.scales, alpha), {})),
    }


@functools.cache
def _quantized() -> tuple[Tensor, Tensor]:
    x = torch.empty(QUANTIZED.m, QUANTIZED.k, dtype=torch.bfloat16).normal_()
    return x, ops.global_scale(x)


def quantize_blocks() -> Blocks:
    """Quantization beside copies: of as many bytes as it reads, and of arrays that no cache holds a part of."""
    x, global_scale = _quantized()
    return {
        (QUANTIZE_CASE, "dutyfree"): timed_block(ops.tunable_fp4_quantize, Call((x, global_scale, BLOCK, True), {})),
        (QUANTIZE_CASE, "copy_32_mib"): peaks.copy_block(COPY_32_MIB),
        (QUANTIZE_CASE, "copy_stream"): peaks.copy_block(peaks.stream_bytes()),
    }


def torch_blocks() -> Blocks:
    """Quantization by the operator, in PyTorch's operators, and torchao's where it is installed."""
    x, global_scale = _quantized()
    call = Call((x, global_scale, BLOCK, True), {})
    require_same(ops.tunable_fp4_quantize(*call.args), nvfp4_torch.quantize(x, global_scale))
    blocks = {
        (TORCH_CASE, "dutyfree"): timed_block(ops.tunable_fp4_quantize, call),
        (TORCH_CASE, "torch"): timed_block(nvfp4_torch.quantize, Call((x, global_scale), {})),
    }
    torchao = nvfp4_torch.torchao_quantize()
    if torchao is not None:
        blocks[TORCH_CASE, "torchao"] = timed_block(torchao, Call((x, BLOCK, torch.reciprocal(global_scale)), {}))
    return blocks


def require_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    """Refuses to time two quantizations beside each other that do not do the same."""
    for what, own, other in zip(("codes", "scale factors"), ours, theirs, strict=True):
        if not torch.equal(own, other):
            raise BenchmarkError(
                f"benchmark {TORCH_CASE}: {what} differ in {(own != other).sum()} of {own.numel()} bytes"
            )


def host_blocks() -> Blocks:
    """Calls of the smallest operands, beside operators of the same arguments that only allocate their results."""
    allocates = build("dutyfree_bench_nvfp4", SOURCES / "nvfp4_host.cpp")
    x, one = torch.ones(1, BLOCK, dtype=torch.bfloat16), torch.ones(1)
    weight = weight_of(BLOCK, BLOCK)
    quantize = Call((x, one, BLOCK, True), {})
    values, scales = ops.tunable_fp4_quantize(*quantize.args)
    gemm = Call((values, weight.values, scales, weight.scales, one, torch.bfloat16), {})
    with tuned():
        ops.nvfp4_gemm(*gemm.args)
    blocks = {}
    for case, operator, baseline, call in (
        (HOST_QUANTIZE, ops.tunable_fp4_quantize, allocates.quantize, quantize),
        (HOST_GEMM, ops.nvfp4_gemm, allocates.gemm, gemm),
    ):
        callables = (operator, operator._opoverload, baseline, baseline._opoverload)
        for name, function in zip(HOST_CANDIDATES, callables, strict=True):
            require_path("direct", case, name, function, call)
            blocks[case, name] = timed_block(function, call)
    return blocks


def describe() -> dict[str, str | int]:
    """What the environment has beyond what every benchmark says of it."""
    return {
        "flags": vector_flags(),
        "targets": " ".join(ops.nvfp4.available_targets()),
        "last_level_cache": last_level_cache(),
    }


def facts(results: Results) -> dict[str, Any]:
    """What follows from the times, in Gop/s and GB/s, and the backends that were chosen."""

    def bandwidth(candidate: str, size: float) -> float:
        row = results.find(QUANTIZE_CASE, candidate)
        assert row is not None
        return round(size / row.us / 1e3, 2)

    peak = {}
    for name, operations in peaks.operations().items():
        row = results.find(PEAKS_CASE, name)
        assert row is not None
        peak[name] = round(operations / row.us / 1e3, 1)
    if "int8" in peak:
        peak["int8_scaled"] = round(peak["int8"] * INT8_SHARE, 1)
    return {
        "gb_s": {
            "dutyfree": bandwidth("dutyfree", quantize_bytes(QUANTIZED)),
            "copy_32_mib": bandwidth("copy_32_mib", 2 * COPY_32_MIB),
            "copy_stream": bandwidth("copy_stream", 2 * peaks.stream_bytes()),
        },
        "stream_bytes": peaks.stream_bytes(),
        "peak_gop_s": peak,
        "backends": {shape.case: chosen_backend(shape) for shape in SHAPES if results.find(shape.case, GEMM)},
    }
