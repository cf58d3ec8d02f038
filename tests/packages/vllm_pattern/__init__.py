"""A small inference package whose operators are registered the way vLLM and SGLang register theirs."""

from vllm_pattern.model import Block, Decoder
from vllm_pattern.registration import LIBRARY, add_operator

__all__ = ["LIBRARY", "Block", "Decoder", "add_operator"]
