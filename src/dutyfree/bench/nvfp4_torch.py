"""Quantization to NVFP4 written in PyTorch's operators, and torchao's, which the operator is timed beside."""

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TORCHAO = "0.18.0"


def quantize(x: Tensor, global_scale: Tensor) -> list[Tensor]:
    """What ``tunable_fp4_quantize(x, global_scale, 16, True)`` returns, of x (M, K) without NaNs."""
    blocks = x.float().unflatten(-1, (-1, 16))
    largest = blocks.abs().amax(-1)
    # In double precision and then rounded twice, as the operator does it.
    scales = (global_scale.double() * largest.double() / 6).float().clamp(max=448).to(torch.float8_e4m3fn)
    scaled = blocks * torch.where(largest == 0, 0.0, global_scale / scales.float()).unsqueeze(-1)
    magnitudes = scaled.abs().clamp(max=6)
    # Codes are a half apart below 2, one apart below 4 and two apart above; round() takes the even one of two.
    steps = torch.where(
        magnitudes < 2,
        (magnitudes * 2).round(),
        torch.where(magnitudes < 4, magnitudes.round() + 2, (magnitudes / 2).round() + 4),
    )
    codes = (steps.to(torch.uint8) | (scaled.signbit().to(torch.uint8) << 3)).flatten(-2)
    return [codes[:, ::2] | codes[:, 1::2] << 4, swizzle(scales.view(torch.uint8))]


def swizzle(scales: Tensor) -> Tensor:
    """Scale factors (M, K / 16) in the tiles of 128 × 4 that matrix units read, flat."""
    rows, columns = (-(-size // to) for size, to in zip(scales.shape, (128, 4), strict=True))
    padded = torch.nn.functional.pad(scales, (0, columns * 4 - scales.shape[1], 0, rows * 128 - scales.shape[0]))
    return padded.view(rows, 4, 32, columns, 4).permute(0, 3, 2, 1, 4).reshape(-1)


def missing() -> list[str]:
    """What is not measured, and why, as sentences."""
    if torchao_quantize() is None:
        return [f"torchao {TORCHAO} is not installed, so that it is not measured: pip install torchao=={TORCHAO}"]
    return []


@functools.cache
def torchao_quantize() -> Callable[..., Any] | None:
    """``nvfp4_quantize(x, 16, 1 / global_scale)``, which leaves its scale factors unswizzled; None without torchao."""
    if importlib.util.find_spec("torchao") is None or importlib.metadata.version("torchao") != TORCHAO:
        return None
    module: Any = importlib.import_module("torchao.prototype.mx_formats.nvfp4_tensor")
    function: Callable[..., Any] = module.nvfp4_quantize
    return function
