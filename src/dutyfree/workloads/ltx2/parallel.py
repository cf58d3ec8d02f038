"""One rank's part of a denoising run: classifier-free guidance split × Ulysses sequence parallelism."""

from torch import Tensor, nn


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


ALONE = Parallel()
