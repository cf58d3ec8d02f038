"""Final latents of two runs: whether they are the same, and how far apart they are."""

import hashlib

import torch
from torch import Tensor


def sha256(*latents: Tensor) -> str:
    """Of their bytes, in order; of tensors with a dimension."""
    digest = hashlib.sha256()
    for part in latents:
        digest.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def difference(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Of video and audio the larger: "largest" of any latent, "relative" of all, their norm in that of ``one``."""
    pairs = list(zip(one, other, strict=True))
    return {
        "largest": max(float((a - b).abs().max()) for a, b in pairs),
        "relative": max(float((a - b).norm() / a.norm()) for a, b in pairs),
    }
