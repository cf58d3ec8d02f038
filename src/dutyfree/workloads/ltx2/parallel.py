"""One rank's part of a denoising run: classifier-free guidance split × Ulysses sequence parallelism."""

# torch.distributed may have none of the types below, where PyTorch was built without it.
from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dutyfree.workloads.ltx2.diffusers_parts import BLOCKS
from dutyfree.workloads.ltx2.layout import Layout
from dutyfree.workloads.ltx2.ulysses import Exchange, gathered, split_attentions


class Parallel:
    """A run in one process: all of everything."""

    def prepare(self, model: nn.Module) -> None:
        """Change the model for this rank's part of the video tokens."""

    def guidance_rows(self, text: Tensor) -> Tensor:
        """The rows of the text embeddings, without and with a prompt, that this rank's forward is about."""
        return text

    def video_part(self, video: Tensor, dim: int) -> Tensor:
        """This rank's video tokens, which are along ``dim``."""
        return video

    def whole_video(self, part: Tensor, dim: int) -> Tensor:
        """All video tokens again, on every rank."""
        return part

    def both_predictions(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The predictions without and with the prompt."""
        without, with_prompt = rows.chunk(2)
        return without, with_prompt

    def wait(self) -> None:
        """Until every rank is here."""

    def check_equal(self, **tensors: Tensor) -> None:
        """RuntimeError where a tensor that all ranks should have alike differs."""


ALONE = Parallel()


class Split(Parallel):
    """One rank of a run over several processes. Every rank makes it, and calls its methods in the same order.

    Video tokens are split along the sequence; video_tokens / ulysses are here. Audio and text are whole on every rank,
    which computes all of their layers: audio has few tokens, in the real model 126, which 4 does not divide. The ranks
    of an Ulysses group are consecutive, so that they share a machine; those with the same part of the video but other
    rows of the text embeddings are ``ulysses`` apart.

    Args:
        layout: Of all ranks; torch.distributed's default group has as many.
        timeout: Seconds that an exchange may wait for the other ranks, before it raises RuntimeError.
    """

    def __init__(self, layout: Layout, timeout: float) -> None:
        if dist.get_world_size() != layout.processes:
            raise ValueError(
                f"the layout has {layout.processes} processes, and torch.distributed {dist.get_world_size()}."
            )
        self.layout = layout
        ranks = torch.arange(layout.processes).reshape(layout.guidance, layout.ulysses)
        self._all = _own_group([ranks.flatten().tolist()], timeout)
        self._ulysses = _own_group(ranks.tolist(), timeout)
        self._guidance = _own_group(ranks.T.tolist(), timeout)
        self._half, self._part = divmod(dist.get_rank(), layout.ulysses)

    def prepare(self, model: nn.Module) -> None:
        """Set the processors of the attentions over video tokens; see :func:`.ulysses.split_attentions`."""
        if self.layout.ulysses > 1:
            split_attentions(model.get_submodule(BLOCKS), Exchange(self._ulysses))

    def guidance_rows(self, text: Tensor) -> Tensor:
        return text.chunk(self.layout.guidance)[self._half]

    def video_part(self, video: Tensor, dim: int) -> Tensor:
        tokens = video.shape[dim]
        if tokens % self.layout.ulysses:
            raise ValueError(f"{tokens} video tokens can't be split into {self.layout.ulysses} equal parts.")
        return video.chunk(self.layout.ulysses, dim)[self._part].contiguous()

    def whole_video(self, part: Tensor, dim: int) -> Tensor:
        return torch.cat(gathered(part, self._ulysses).unbind(), dim)

    def both_predictions(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self.layout.guidance == 1:
            return super().both_predictions(rows)
        without, with_prompt = gathered(rows, self._guidance)
        return without, with_prompt

    def wait(self) -> None:
        dist.barrier()

    def check_equal(self, **tensors: Tensor) -> None:
        for name, tensor in tensors.items():
            everyones = gathered(tensor, self._all)
            different = [rank for rank, other in enumerate(everyones) if not torch.equal(other, everyones[0])]
            if different:
                raise RuntimeError(
                    f"rank {different[0]} ended with other {name} than rank 0. Ranks that round differently, as with "
                    "other tactics for the same sizes, drift apart: give all of them one tuning cache."
                )


def _own_group(all_ranks: list[list[int]], timeout: float) -> dist.ProcessGroup:
    """This rank's of several groups. Every rank makes all of them, as torch.distributed demands."""
    made: list[dist.ProcessGroup] = [dist.new_group(ranks, timeout=timedelta(seconds=timeout)) for ranks in all_ranks]
    return next(group for ranks, group in zip(all_ranks, made, strict=True) if dist.get_rank() in ranks)
