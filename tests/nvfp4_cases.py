"""What the tests of the NVFP4 operators share: tensors, and the oracle's numpy on torch's side."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import nvfp4_oracle as oracle
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


@dataclasses.dataclass
class Operands:
    """A product's operands as numpy (scales linear) and as the operator takes them (scales swizzled)."""

    act: oracle.Bytes
    act_scales: oracle.Bytes
    weight: oracle.Bytes
    weight_scales: oracle.Bytes
    alpha: float = 1.0

    def __post_init__(self) -> None:
        self.tensors = (
            torch.from_numpy(self.act),
            torch.from_numpy(self.weight),
            torch.from_numpy(oracle.swizzle(self.act_scales)),
            torch.from_numpy(oracle.swizzle(self.weight_scales)),
            one(self.alpha),
        )

    def exact(self, columns: Any = slice(None), bias: Any = None) -> tuple[oracle.Floats, oracle.Floats]:
        """The result in float64 and the sum of magnitudes, of the columns asked for."""
        return oracle.gemm(
            self.act, self.act_scales, self.weight[columns], self.weight_scales[columns], self.alpha, bias
        )

    def decoded_to_bfloat16(self, columns: Any = slice(None), bias: Tensor | None = None) -> Tensor:
        """torch.mm of both operands as bfloat16, which holds each e2m1 · e4m3 exactly; float32 from there on."""
        act = torch.from_numpy(oracle.dequantize(self.act, self.act_scales)).bfloat16()
        weight = torch.from_numpy(oracle.dequantize(self.weight[columns], self.weight_scales[columns])).bfloat16()
        result = torch.mm(act, weight.t()).float() * self.alpha
        return result if bias is None else result + bias.float()


def operands(m: int, n: int, k: int, seed: int = 0, low: int = 0x28, high: int = 0x48) -> Operands:
    """Any codes, and scales from 2^-2 to 2^2 without other bounds; alpha so that results are about 1."""
    rng = np.random.default_rng(seed)

    def codes(rows: int) -> oracle.Bytes:
        return rng.integers(0, 256, (rows, k // 2), np.uint8)

    def scales(rows: int) -> oracle.Bytes:
        return rng.integers(low, high, (rows, k // 16), np.uint8)

    return Operands(codes(m), scales(m), codes(n), scales(n), float(np.float32(1 / (16 * k**0.5))))
