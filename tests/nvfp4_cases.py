"""What the tests of the NVFP4 operators share: tensors, and the oracle's numpy on torch's side."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dutyfree.ops import nvfp4

# What a refused call may raise; which of them is not promised, but that the operator and the argument are named.
REFUSED = (RuntimeError, ValueError, TypeError, NotImplementedError)
OPCHECKED = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def as_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """(M, K) float32, exactly: every dtype that is quantized fits."""
    return tensor.reshape(-1, tensor.shape[-1]).float().numpy()


def one(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float32)


@pytest.fixture(params=nvfp4.available_targets())
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Once for each set of CPU kernels that this machine can run."""
    with nvfp4.force_target(request.param):
        yield request.param
