"""Measures the backends of ``nvfp4_gemm`` for given sizes: what ``dutyfree tune nvfp4`` does."""

from collections.abc import Iterable

import torch

from dutyfree import ops

Shape = tuple[int, int, int]

# (N, K) of the linear layers of LTX-2's transformer, LTX2VideoTransformer3DModel of diffusers 0.42.1 with its real
# widths: video 4096, audio 2048, feed-forward layers four times as wide.
_LTX2_WEIGHTS = (
    (4096, 4096),
    (2048, 2048),
    (2048, 4096),
    (4096, 2048),
    (16384, 4096),
    (4096, 16384),
    (8192, 2048),
    (2048, 8192),
)
# Rows: audio tokens, text tokens, and video tokens of 736 x 1280 pixels and 121 frames, on one of 4 devices and whole.
_LTX2_ROWS = (126, 1024, 3680, 14720)


def model_shapes(name: str) -> list[Shape]:
    """The (M, N, K) of a model's linear layers. ``"ltx2"`` is known."""
    if name != "ltx2":
        raise ValueError(f"{name!r}: the sizes of no such model are known here, only those of 'ltx2'.")
    return [(rows, *weight) for rows in _LTX2_ROWS for weight in _LTX2_WEIGHTS]


def tune_shapes(shapes: Iterable[Shape], output_dtype: torch.dtype = torch.bfloat16) -> None:
    """Call ``nvfp4_gemm`` once for each (M, N, K), on the CPU or, where there is one, the current CUDA device.

    Inside ``with dutyfree.autotune():`` that measures what was not measured before. Sizes that share a bucket (M is
    rounded down to a power of two) are measured once.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)

    def quantized(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        given = torch.randn(rows, columns, generator=generator, device=device, dtype=torch.bfloat16)
        values, scale_factors = ops.tunable_fp4_quantize(given, ops.global_scale(given), 16, True)
        return values, scale_factors

    # One weight at a time: those of a whole model, and both forms of each, need not fit into memory together.
    for rows, weight_rows, columns in sorted(set(shapes), key=lambda shape: (shape[1:], shape[0])):
        activations, activation_scales = quantized(rows, columns)
        weight, weight_scales = quantized(weight_rows, columns)
        alpha = torch.ones(1, device=device)
        ops.nvfp4_gemm(activations, weight, activation_scales, weight_scales, alpha, output_dtype)
