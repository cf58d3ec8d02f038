"""NVFP4 operators: ``trtllm::tunable_fp4_quantize``, ``trtllm::nvfp4_gemm`` and what is needed around them.

Importing this module registers the operators with PyTorch.
"""

from dutyfree.ops import nvfp4
from dutyfree.ops.linear import NVFP4Linear, QuantizedLinears, quantize_linears
from dutyfree.ops.nvfp4 import (
    fp4_dequantize,
    global_scale,
    nvfp4_gemm,
    swizzle_scale_factors,
    tunable_fp4_quantize,
    unswizzle_scale_factors,
)

__all__ = [
    "NVFP4Linear",
    "QuantizedLinears",
    "fp4_dequantize",
    "global_scale",
    "nvfp4",
    "nvfp4_gemm",
    "quantize_linears",
    "swizzle_scale_factors",
    "tunable_fp4_quantize",
    "unswizzle_scale_factors",
]
