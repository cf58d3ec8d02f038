"""The sizes of the workload's model and of what it denoises."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """Sizes of an ``LTX2VideoTransformer3DModel`` and its inputs; what is not here are diffusers' defaults.

    The defaults have the real number of blocks and of linear layers, and widths so narrow that the calls, not the work
    between them, take the time, as on a GPU. ``Sizes.real()`` is the model as published.

    Attributes:
        blocks: Transformer blocks.
        heads: Attention heads, of video and of audio.
        head_size: Elements of a video head, a multiple of 16; the video's width is ``heads * head_size``.
        audio_head_size: The same of audio.
        channels: Of the latents, video and audio.
        caption_channels: Of the text embeddings.
        frames: Latent frames; a frame has ``height * width`` video tokens.
        height: Latent rows of a frame.
        width: Latent columns of a frame.
        audio_tokens: Latent frames of audio.
        text_tokens: Tokens of a prompt.
    """

    blocks: int = 48
    heads: int = 4
    head_size: int = 32
    audio_head_size: int = 16
    channels: int = 16
    caption_channels: int = 32
    frames: int = 2
    height: int = 2
    width: int = 4
    audio_tokens: int = 8
    text_tokens: int = 8

    @classmethod
    def real(cls) -> "Sizes":
        """LTX-2 at 736 x 1280 pixels and 121 frames: 18.9 billion parameters, 384 TFLOP a forward."""
        return cls(48, 32, 128, 64, 128, 3840, 16, 23, 40, 126, 1024)

    def __post_init__(self) -> None:
        odd = [name for name, value in vars(self).items() if type(value) is not int]
        if odd:
            raise ValueError(f"Sizes: {', '.join(odd)} must be whole numbers.")
        small = [name for name, value in vars(self).items() if value < 1]
        if small:
            raise ValueError(f"Sizes: {', '.join(small)} must be positive.")
        for name in ("head_size", "audio_head_size"):
            size = getattr(self, name)
            if size % 16:
                raise ValueError(
                    f"Sizes: {name} is {size}; it must be a multiple of 16, the elements that share an NVFP4 scale."
                )

    @property
    def video_tokens(self) -> int:
        return self.frames * self.height * self.width

    @property
    def linears(self) -> int:
        """Linear layers of all blocks: four in each of six attentions, two in each of two feed-forward layers."""
        return 28 * self.blocks

    def config(self) -> dict[str, Any]:
        """The arguments of ``LTX2VideoTransformer3DModel``."""
        video, audio = self.heads * self.head_size, self.heads * self.audio_head_size
        return {
            "num_layers": self.blocks,
            "in_channels": self.channels,
            "out_channels": self.channels,
            "num_attention_heads": self.heads,
            "attention_head_dim": self.head_size,
            "cross_attention_dim": video,
            "audio_in_channels": self.channels,
            "audio_out_channels": self.channels,
            "audio_num_attention_heads": self.heads,
            "audio_attention_head_dim": self.audio_head_size,
            "audio_cross_attention_dim": audio,
            "caption_channels": self.caption_channels,
        }
