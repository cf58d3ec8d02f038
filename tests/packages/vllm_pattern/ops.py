"""The package's operators: one of each kind that such packages have."""

import torch
from torch import Tensor

from vllm_pattern import layers
from vllm_pattern.registration import add_operator


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * scale * weight


def add_and_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> None:
    """``residual`` becomes the sum, ``x`` its norm."""
    residual.add_(x)
    x.copy_(rms_norm(residual, weight, eps))


def attend_into(query: Tensor, key: Tensor, value: Tensor, out: Tensor, layer: str) -> None:
    """Attention over all that the layer has seen. Shapes: [tokens, heads, size]."""
    cache = layers.cache_of(layer)
    cache.append((key.clone(), value.clone()))
    keys, values = (torch.cat(parts).transpose(0, 1) for parts in zip(*cache, strict=True))
    attended = torch.nn.functional.scaled_dot_product_attention(query.transpose(0, 1), keys, values)
    out.copy_(attended.transpose(0, 1))


def mix_experts(x: Tensor, logits: Tensor, layer: str) -> Tensor:
    up, down, per_token = layers.experts_of(layer)
    weights, chosen = logits.softmax(-1).topk(per_token)
    inner = torch.einsum("th,tkhi->tki", x, up[chosen]).relu()
    return torch.einsum("tki,tkih,tk->th", inner, down[chosen], weights)


def quantize_rows(x: Tensor, bits: int = 8, floor: float | None = None) -> tuple[Tensor, Tensor]:
    """Integers, and a scale for each row, which is not below ``floor``."""
    limit = 2 ** (bits - 1) - 1
    scale = x.abs().amax(-1, keepdim=True) / limit
    scale = scale.clamp(min=1e-8 if floor is None else floor)
    return (x / scale).round().to(torch.int8), scale


def sum_parts(parts: list[Tensor], group: str) -> Tensor:
    """Stands for a reduction over ranks: the only rank's part as it is, which custom_op would refuse to return."""
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def fake_quantize_rows(x: Tensor, bits: int = 8, floor: float | None = None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=torch.int8), x.new_empty((*x.shape[:-1], 1))


add_operator(rms_norm, fake=lambda x, weight, eps=1e-6: torch.empty_like(x), key="CompositeExplicitAutograd")
add_operator(add_and_norm_, mutates=["x", "residual"], fake=lambda x, residual, weight, eps=1e-6: None)
add_operator(
    attend_into,
    mutates=["out"],
    fake=lambda query, key, value, out, layer: None,
    tags=(torch.Tag.needs_fixed_stride_order,),
)
add_operator(mix_experts, fake=lambda x, logits, layer: torch.empty_like(x), tags=(torch.Tag.needs_fixed_stride_order,))
add_operator(quantize_rows, fake=fake_quantize_rows)
add_operator(sum_parts, fake=lambda parts, group: torch.empty_like(parts[0]))
