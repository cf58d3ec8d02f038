"""Ulysses sequence parallelism in LTX-2's attentions: tokens are exchanged for heads and back.

Outside of attention a rank holds some of the video tokens, with all heads; inside, all tokens of some of the heads.
After Jacobs et al., DeepSpeed Ulysses, 2023. Only the attentions whose keys are video tokens need it; in the others
each rank's queries meet keys that are whole on every rank.

The exchanges are torch.distributed's own calls, which torch.compile traces, so that a block compiles without breaks.
"""

# torch.distributed may have none of the types below, where PyTorch was built without it.
from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dutyfree.workloads.ltx2.diffusers_parts import attention_function, rotary_function


class Exchange:
    """The ranks that share the video tokens, in the order of their parts."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def tokens_for_heads(self, parts: Tensor) -> Tensor:
        """(n, rows, tokens / size, heads, head size) of each rank -> (n, rows, tokens, heads / size, head size)."""
        n, rows, tokens, heads, head_size = parts.shape
        own = heads // self.size
        sent = parts.reshape(n, rows, tokens, self.size, own, head_size).permute(3, 0, 1, 2, 4, 5)
        # The first dimension is the rank that it goes to, and then the one that it came from.
        received = self._all_to_all(sent.contiguous())
        return received.permute(1, 2, 0, 3, 4, 5).reshape(n, rows, self.size * tokens, own, head_size)

    def heads_for_tokens(self, whole: Tensor) -> Tensor:
        """(rows, tokens, heads / size, head size) of each rank -> (rows, tokens / size, heads, head size)."""
        rows, tokens, own, head_size = whole.shape
        part = tokens // self.size
        sent = whole.reshape(rows, self.size, part, own, head_size).transpose(0, 1)
        received = self._all_to_all(sent.contiguous())
        return received.permute(1, 2, 0, 3, 4).reshape(rows, part, self.size * own, head_size)

    def own_heads(self, whole: Tensor) -> Tensor:
        """(rows, tokens, heads, head size) -> this rank's, (rows, tokens, heads / size, head size)."""
        own = whole.shape[2] // self.size
        return whole[:, :, self.rank * own : (self.rank + 1) * own]

    def all_heads(self, own: Tensor) -> Tensor:
        """(rows, tokens, heads / size, head size) of each rank -> (rows, tokens, heads, head size) on all of them."""
        return torch.cat(gathered(own, self.group).unbind(), dim=2)

    def _all_to_all(self, sent: Tensor) -> Tensor:
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        return received


def gathered(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Every rank's tensor, stacked: (size, *shape) in the order of ranks, on each of them."""
    whole = part.new_empty(dist.get_world_size(group), *part.shape)
    dist.all_gather_single(whole, part.unsqueeze(0).contiguous(), group=group)
    return whole


class _Attention:
    """A processor of diffusers' ``LTX2Attention``, whose arguments its call has."""

    def __init__(self, exchange: Exchange, rope_type: str) -> None:
        self.exchange = exchange
        # Not looked up in each call: the look at diffusers' version can't be traced.
        self._rotate, self._attention = rotary_function(rope_type), attention_function()

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        query_rotary_emb: tuple[Tensor, Tensor] | None = None,
        key_rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        if attention_mask is not None:
            raise NotImplementedError(
                f"attention_mask of shape {tuple(attention_mask.shape)}: attention over video tokens that several "
                "processes share takes no mask. Run in one process."
            )
        keys_from = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key = attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(keys_from))
        if query_rotary_emb is not None:
            query = self._rotate(query, query_rotary_emb)
            key = self._rotate(key, query_rotary_emb if key_rotary_emb is None else key_rotary_emb)
        query, key, value = (each.unflatten(2, (attn.heads, -1)) for each in (query, key, attn.to_v(keys_from)))
        result: Tensor = attn.to_out[0](self.mixed(query, key, value).flatten(2))
        return result

    def mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """softmax(q · kᵀ) · v over all video tokens, of this rank's tokens or queries and all heads."""
        raise NotImplementedError

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result: Tensor = self._attention(query, key, value)
        return result.to(query.dtype)


class SelfAttention(_Attention):
    """Among video tokens: this rank's queries, keys and values; the result is of its tokens."""

    def mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # One exchange for the three: what it costs is mostly a call's latency.
        whole = self.exchange.tokens_for_heads(torch.stack((query, key, value)))
        return self.exchange.heads_for_tokens(self._attend(*whole.unbind()))


class FromVideo(_Attention):
    """Of audio, whose queries and result are whole on every rank, to video tokens."""

    def mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self.exchange.tokens_for_heads(torch.stack((key, value))).unbind()
        return self.exchange.all_heads(self._attend(self.exchange.own_heads(query), keys, values))


PROCESSORS: dict[str, type[_Attention]] = {"attn1": SelfAttention, "video_to_audio_attn": FromVideo}


def split_attentions(blocks: nn.Module, exchange: Exchange) -> None:
    """Have the attentions over video tokens of all blocks exchange tokens for heads.

    Raises:
        NotImplementedError: An attention is gated or may be perturbed, which diffusers' processors can do and these
            can't.
        ValueError: The ranks do not divide its heads.
    """
    for index, block in enumerate(blocks.children()):
        for name, processor in PROCESSORS.items():
            attention: Any = block.get_submodule(name)
            where = f"{name} of block {index}"
            if attention.to_gate_logits is not None or getattr(block, "perturbed_attn", False):
                kind = "gated" if attention.to_gate_logits is not None else "perturbed"
                raise NotImplementedError(f"{where} is {kind} attention, which runs in one process only.")
            if attention.heads % exchange.size:
                raise ValueError(f"{where} has {attention.heads} heads, which {exchange.size} ranks do not divide.")
            attention.set_processor(processor(exchange, attention.rope_type))
