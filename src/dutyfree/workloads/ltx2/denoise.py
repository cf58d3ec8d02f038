"""The denoising loop: classifier-free guidance and a flow-matching Euler scheduler, step by step.

The guided velocity is v_with + (scale - 1) * (v_with - v_without), of the model's velocities with and without the
prompt. diffusers' LTX-2 pipeline has that formula for the denoised latents, which are linear in the velocity.
"""

from typing import Any

import torch
from torch import Tensor, nn

from dutyfree.workloads.ltx2.diffusers_parts import scheduler_class
from dutyfree.workloads.ltx2.inputs import Inputs
from dutyfree.workloads.ltx2.parallel import ALONE, Parallel
from dutyfree.workloads.ltx2.sizes import Sizes

GUIDANCE = 4.0


class Denoising:
    """One run of the loop. ``step()`` until ``done``; then ``latents()``.

    Args:
        model: Of ``make_model`` with the same sizes; in a parallel run after ``parallel.prepare(model)``.
        steps: Of the scheduler.
        seed: Of the latents and text embeddings.
        parallel: This rank's part of a run over several processes.
    """

    def __init__(
        self, model: nn.Module, sizes: Sizes, steps: int, *, seed: int = 0, parallel: Parallel = ALONE
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps={steps}: a run has at least one step.")
        self.model, self.sizes, self.steps, self.parallel = model, sizes, steps, parallel
        device = next(model.parameters()).device
        whole = Inputs.random(sizes, seed, device)
        coordinates = model.rope.prepare_video_coords(1, sizes.frames, sizes.height, sizes.width, device)  # type: ignore[operator,union-attr]
        self._text = parallel.guidance_rows(whole.text), parallel.guidance_rows(whole.audio_text)
        self._coordinates = parallel.video_part(coordinates, dim=2)
        self._video, self._audio = parallel.video_part(whole.video, dim=1), whole.audio
        self._schedulers = tuple(_scheduler(steps, device) for _ in range(2))
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at == self.steps

    @torch.inference_mode()
    def step(self) -> None:
        """One forward of the model, guidance, and the scheduler's step."""
        timestep = self._schedulers[0].timesteps[self._at]
        video, audio = self._velocities(timestep)
        self._video = self._advanced(self._schedulers[0], self._video, video, timestep)
        self._audio = self._advanced(self._schedulers[1], self._audio, audio, timestep)
        self._at += 1

    def _velocities(self, timestep: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._text[0].shape[0]
        result: tuple[Tensor, Tensor] = self.model(
            hidden_states=self._video.bfloat16().expand(rows, -1, -1),
            audio_hidden_states=self._audio.bfloat16().expand(rows, -1, -1),
            encoder_hidden_states=self._text[0],
            audio_encoder_hidden_states=self._text[1],
            timestep=timestep.expand(rows),
            video_coords=self._coordinates.expand(rows, -1, -1, -1),
            audio_num_frames=self.sizes.audio_tokens,
            return_dict=False,
        )
        return result

    def _advanced(self, scheduler: Any, latents: Tensor, velocity: Tensor, timestep: Tensor) -> Tensor:
        without, with_prompt = self.parallel.both_predictions(velocity.float())
        guided = with_prompt + (GUIDANCE - 1) * (with_prompt - without)
        result: Tensor = scheduler.step(guided, timestep, latents, return_dict=False)[0]
        return result

    def latents(self) -> tuple[Tensor, Tensor]:
        """The whole video's and the audio's, on every rank."""
        return self.parallel.whole_video(self._video, dim=1), self._audio


def _scheduler(steps: int, device: torch.device) -> Any:
    scheduler = scheduler_class()()
    scheduler.set_timesteps(steps, device=device)
    return scheduler
