"""What the workload denoises: random latents and text embeddings from a seed."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dutyfree.workloads.ltx2.sizes import Sizes


@dataclass
class Inputs:
    """Latents and text embeddings, bfloat16. Row 0 of the embeddings is without a prompt, row 1 with it.

    Attributes:
        video: (1, video tokens, channels), float32.
        audio: (1, audio tokens, channels), float32.
        text: (2, text tokens, caption channels), bfloat16.
        audio_text: The same for audio.
    """

    video: Tensor
    audio: Tensor
    text: Tensor
    audio_text: Tensor

    @classmethod
    def random(cls, sizes: Sizes, seed: int = 0, device: torch.device | str = "cpu") -> "Inputs":
        """Normal values; on each device the CPU's."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        text = (2, sizes.text_tokens, sizes.caption_channels)
        return cls(
            video=normal(1, sizes.video_tokens, sizes.channels),
            audio=normal(1, sizes.audio_tokens, sizes.channels),
            text=normal(*text).bfloat16(),
            audio_text=normal(*text).bfloat16(),
        )

    def forward_arguments(self, sizes: Sizes, timestep: float = 1000.0) -> dict[str, Any]:
        """The model's arguments for one forward over both rows of the embeddings."""
        rows = self.text.shape[0]
        return {
            "hidden_states": self.video.bfloat16().expand(rows, -1, -1),
            "audio_hidden_states": self.audio.bfloat16().expand(rows, -1, -1),
            "encoder_hidden_states": self.text,
            "audio_encoder_hidden_states": self.audio_text,
            "timestep": torch.full((rows,), timestep, device=self.video.device),
            "num_frames": sizes.frames,
            "height": sizes.height,
            "width": sizes.width,
            "audio_num_frames": sizes.audio_tokens,
            "return_dict": False,
        }
