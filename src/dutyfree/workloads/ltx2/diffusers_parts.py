"""What the workload takes from diffusers, and its absence."""

import importlib.metadata
import importlib.util
from typing import Any

VERSION = "0.42.1"
# The transformer's blocks, within it.
BLOCKS = "transformer_blocks"


def check_diffusers() -> None:
    """ImportError with what to install where diffusers is missing or is another release."""
    try:
        installed = importlib.metadata.version("diffusers")
        if importlib.util.find_spec("diffusers") is None:  # its description was left behind
            raise importlib.metadata.PackageNotFoundError
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            f"the LTX-2 model needs diffusers {VERSION}, which is not installed: pip install 'dutyfree[ltx2]'."
        ) from None
    if installed != VERSION:
        raise ImportError(
            f"the LTX-2 model is written for diffusers {VERSION}, and {installed} is installed: "
            "pip install 'dutyfree[ltx2]'."
        )


def transformer_class() -> Any:
    """``LTX2VideoTransformer3DModel``."""
    check_diffusers()
    from diffusers.models.transformers.transformer_ltx2 import LTX2VideoTransformer3DModel

    return LTX2VideoTransformer3DModel


def scheduler_class() -> Any:
    """``FlowMatchEulerDiscreteScheduler``."""
    check_diffusers()
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler


def attention_function() -> Any:
    """What its attention processors call for softmax(q · kᵀ) · v."""
    check_diffusers()
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    return dispatch_attention_fn


def rotary_function(rope_type: str) -> Any:
    """What rotates queries and keys (rows, tokens, width) by the two tensors of a rotary embedding."""
    check_diffusers()
    from diffusers.models.transformers import transformer_ltx2

    return getattr(transformer_ltx2, f"apply_{rope_type}_rotary_emb")
