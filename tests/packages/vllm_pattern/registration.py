"""One helper that makes a Python function an operator, in a library that lives as long as the process."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

LIBRARY = torch.library.Library("vllm_pattern", "FRAGMENT")


def add_operator(
    body: Callable[..., Any],
    *,
    mutates: Sequence[str] = (),
    fake: Callable[..., Any] | None = None,
    key: str = "CPU",
    tags: tuple[torch.Tag, ...] = (),
    library: torch.library.Library = LIBRARY,
) -> None:
    """Define ``body``'s operator, named after it, with ``body`` as its kernel for the dispatch key ``key``.

    This is what ``torch.library.custom_op`` spares a kernel: no check of its results for aliases, no autograd node.
    """
    name = body.__name__
    library.define(name + torch.library.infer_schema(body, mutates_args=mutates), tags=tags)
    library.impl(name, body, dispatch_key=key)
    if fake is not None:
        library._register_fake(name, fake)
