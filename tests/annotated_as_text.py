"""Functions whose annotations are text, for test_schema.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import dutyfree

Alias = Tensor


def scaled(x: Tensor, factor: float, y: Tensor | None = None) -> Tensor:
    return x * factor


def listed(tensors: list[Tensor], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [tensor.to(dtype, copy=True) for tensor in tensors]


def aliased(x: Alias, count: int | None = None) -> Alias:
    return x.clone()


def made_inside_a_function(namespace: str) -> Any:
    from typing import Optional

    from torch import Tensor as Inner

    @dutyfree.fast_custom_op(f"{namespace}::op")
    def body(x: Inner, y: Optional[Inner] = None) -> Inner:  # noqa: UP045
        return x.clone()

    return body
