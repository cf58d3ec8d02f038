"""What the workload takes from diffusers, and its absence."""

import importlib
import importlib.metadata
from typing import Any

VERSION = "0.42.1"
TRANSFORMER = "diffusers.models.transformers.transformer_ltx2"
# The transformer's blocks, within it.
BLOCKS = "transformer_blocks"


def check_diffusers() -> None:
    """ImportError with what to install where diffusers is missing or is another release."""
    try:
        installed = importlib.metadata.version("diffusers")
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
    return _module(TRANSFORMER).LTX2VideoTransformer3DModel


def scheduler_class() -> Any:
    """``FlowMatchEulerDiscreteScheduler``."""
    return _module("diffusers.schedulers.scheduling_flow_match_euler_discrete").FlowMatchEulerDiscreteScheduler


def attention_function() -> Any:
    """What its attention processors call for softmax(q · kᵀ) · v."""
    return _module("diffusers.models.attention_dispatch").dispatch_attention_fn


def rotary_function(rope_type: str) -> Any:
    """What rotates queries and keys (rows, tokens, width) by the two tensors of a rotary embedding."""
    return getattr(_module(TRANSFORMER), f"apply_{rope_type}_rotary_emb")


def _module(name: str) -> Any:
    check_diffusers()
    return importlib.import_module(name)
