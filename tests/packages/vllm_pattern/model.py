"""A decoder whose every step calls the package's operators."""

import torch
from torch import Tensor, nn

from vllm_pattern import layers, ops  # noqa: F401  (registers the operators)

HEADS = 2


class Block(nn.Module):
    def __init__(self, name: str, hidden: int, experts: int) -> None:
        super().__init__()
        self.name = name
        self.norm = nn.Parameter(torch.ones(hidden), requires_grad=False)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.gate = nn.Linear(hidden, experts, bias=False)
        up, down = torch.randn(experts, hidden, 2 * hidden), torch.randn(experts, 2 * hidden, hidden)
        layers.set_experts(name, up / hidden, down / hidden, per_token=2)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        operators = torch.ops.vllm_pattern
        operators.add_and_norm_(x, residual, self.norm)
        query, key, value = (part.unflatten(-1, (HEADS, -1)) for part in self.qkv(x).chunk(3, -1))
        attended = torch.empty_like(query)
        operators.attend_into(query, key, value, attended, self.name)
        x = operators.sum_parts([attended.flatten(1)], "tensor parallel")
        x = operators.mix_experts(x, self.gate(x), self.name)
        return x, residual


class Decoder(nn.Module):
    """Logits of [tokens, vocabulary] for tokens that follow those of earlier calls."""

    def __init__(self, blocks: int = 2, hidden: int = 16, vocabulary: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList([Block(f"block.{index}", hidden, experts=4) for index in range(blocks)])
        self.norm = nn.Parameter(torch.ones(hidden), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        residual = torch.zeros_like(x)
        for block in self.blocks:
            x, residual = block(x, residual)
        x = torch.ops.vllm_pattern.rms_norm(x + residual, self.norm)
        integers, scale = torch.ops.vllm_pattern.quantize_rows(x)
        return (integers * scale) @ self.embedding.weight.T
