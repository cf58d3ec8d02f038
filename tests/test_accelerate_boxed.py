"""accelerate's boxed path: what operators with C++ kernels do is what they do without it."""

import contextlib
import gc
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dutyfree
from dutyfree.check.outcome import Arguments, Outcome, Side, call, observe

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    dutyfree.restore()
    yield
    dutyfree.restore()


def operator(name: str) -> Any:
    """``"aten.add.Tensor"`` is an overload, ``"aten.add"`` a packet."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


def qualname(op: Any) -> str:
    return str(op.name() if isinstance(op, torch._ops.OpOverload) else op._qualified_op_name)


def calls_of(op: Any) -> dict[str, int]:
    """The calls by path of an operator, of all its overloads together. A packet asks one overload after the other, so
    several may count one call as PyTorch's."""
    name = qualname(op)
    counted = [stat.calls for key, stat in dutyfree.stats().items() if key == name or key.startswith(f"{name}.")]
    return {path: sum(calls[path] for calls in counted) for path in ("direct", "autograd", "boxed", "pytorch")}


def took(op: Any, path: str) -> None:
    """Asserts that since the last reset, calls of ``op`` went that way and none another."""
    calls = calls_of(op)
    others = {"direct", "autograd", "boxed"} - {path}
    assert calls[path] > 0, calls
    assert all(calls[other] == 0 for other in others), calls


def outcome(op: Any, make: Callable[[], Arguments]) -> Outcome:
    side = Side("aten", qualname(op), op)
    arguments = make()
    torch.manual_seed(0)
    return observe(side, lambda: op(*arguments.args, **arguments.kwargs), arguments)


def compare(op: Any, make: Callable[[], Arguments], path: str = "boxed") -> Outcome:
    """Calls ``op`` without and with accelerate and asserts that both did the same, the second by ``path``."""
    expected = outcome(op, make)
    dutyfree.accelerate(op)
    dutyfree.reset_stats()
    found = outcome(op, make)
    took(op, path)
    assert found == expected
    return found


def t(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    size = int(np.prod(shape)) if shape else 1
    return torch.arange(1, size + 1).to(dtype).reshape(shape).clone()


def grad(*shape: int) -> Tensor:
    return t(*shape).requires_grad_()


def view(*shape: int) -> Tensor:
    return t(2, *shape)[1]


def inference(*shape: int) -> Tensor:
    with torch.inference_mode():
        return t(*shape)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


BOXED: list[tuple[str, Callable[[], Arguments]]] = [
    # positional, keyword, defaults
    ("aten.relu", lambda: call(t(2))),
    ("aten.relu.default", lambda: call(self=t(2))),
    ("aten.add.Tensor", lambda: call(t(2), t(2))),
    ("aten.add.Tensor", lambda: call(t(2), t(2), alpha=2)),
    ("aten.add.Tensor", lambda: call(t(2), t(2), alpha=2.5)),
    ("aten.add.Tensor", lambda: call(other=t(2), self=t(2))),
    ("aten.add", lambda: call(t(2), t(2))),
    ("aten.add", lambda: call(t(2), alpha=2, other=t(2))),
    ("aten.clamp", lambda: call(t(4), 2, 3)),
    ("aten.clamp", lambda: call(t(4), max=3)),
    ("aten.clamp", lambda: call(t(4), None, 3.5)),
    ("aten.clamp.Tensor", lambda: call(t(4), None, t(4))),
    ("aten.clamp.default", lambda: call(t(4), None)),  # the kernel's error
    ("aten.softmax.int", lambda: call(t(2, 3), 1)),
    ("aten.softmax.int", lambda: call(t(2, 3), -1, torch.float64)),
    ("aten.softmax.int", lambda: call(t(2, 3), 5)),  # IndexError
    ("aten.mm", lambda: call(t(2, 3), t(3, 2))),
    ("aten.mm", lambda: call(t(2, 3), t(2, 3))),  # RuntimeError
    ("aten.mm.default", lambda: call(t(2, 3), t(3, 2, dtype=torch.float64))),
    ("aten.addmm", lambda: call(t(2), t(2, 3), t(3, 2), beta=2, alpha=0.5)),
    ("aten.lerp", lambda: call(t(2), t(2), 0.5)),
    ("aten.where.self", lambda: call(t(2) > 1, t(2), t(2))),
    ("aten.gelu", lambda: call(t(2), approximate="tanh")),
    ("aten.gelu", lambda: call(t(2), approximate="no such")),
    # lists
    ("aten.cat", lambda: call([t(2), t(3)])),
    ("aten.cat", lambda: call((t(2), t(3)), 0)),
    ("aten.cat.default", lambda: call(tensors=[t(2, 1), t(2, 1)], dim=1)),
    ("aten.cat.default", lambda: call([])),
    ("aten.cat.default", lambda: call([t(2), t(2, 2)])),
    ("aten.stack", lambda: call([t(2), t(2)], -1)),
    ("aten.view.default", lambda: call(t(2, 3), [3, 2])),
    ("aten.view.default", lambda: call(t(2, 3), (3, -1))),
    ("aten.view.default", lambda: call(t(2, 3), torch.Size([6]))),
    ("aten.view", lambda: call(t(2, 3), [3, 2])),
    ("aten.view", lambda: call(t(2, 3), [4, 2])),
    ("aten.view", lambda: call(t(2), [])),
    ("aten.permute", lambda: call(t(2, 3), [1, 0])),
    ("aten.sum.dim_IntList", lambda: call(t(2, 3), 1)),  # int for int[1]
    ("aten.sum.dim_IntList", lambda: call(t(2, 3), [0, 1], True)),
    ("aten.sum.dim_IntList", lambda: call(t(2, 3), None)),
    ("aten.sum.dim_IntList", lambda: call(t(2, 3), [1], dtype=torch.float64)),
    ("aten.sum", lambda: call(t(2, 3))),
    ("aten.sum", lambda: call(t(2, 3), dtype=torch.float64)),
    ("aten.sum", lambda: call(t(2, 3), [0])),
    ("aten.avg_pool2d", lambda: call(t(1, 4, 4), [2, 2])),
    ("aten.avg_pool2d", lambda: call(t(1, 4, 4), 2)),  # int for int[2]
    ("aten.avg_pool2d", lambda: call(t(1, 4, 4), 2, 1, [1, 1], True, False, None)),
    ("aten.convolution", lambda: call(t(1, 1, 4), t(1, 1, 2), None, [1], [0], [1], False, [0], 1)),
    ("aten.index.Tensor", lambda: call(t(3, 3), [None, torch.tensor([0, 2])])),
    ("aten.index.Tensor", lambda: call(t(3, 3), (torch.tensor([0, 2]),))),
    ("aten.index.Tensor", lambda: call(t(3, 3), [torch.tensor([9])])),
    ("aten.index_put", lambda: call(t(3), [torch.tensor([0])], t(1), True)),
    ("aten.upsample_nearest2d.vec", lambda: call(t(1, 1, 2, 2), [4, 4], None)),
    ("aten.upsample_nearest2d.vec", lambda: call(t(1, 1, 2, 2), None, [2.0, 2.0])),
    ("aten.upsample_nearest2d.vec", lambda: call(t(1, 1, 2, 2), None, (2.0, 2))),
    ("aten._foreach_add.Scalar", lambda: call([t(2), t(3)], 1)),
    ("aten._foreach_add.List", lambda: call([t(2), t(3)], (t(2), t(3)), alpha=2)),
    ("aten._foreach_add.ScalarList", lambda: call([t(2), t(3)], [1, 2.5])),
    ("aten._foreach_add_.Scalar", lambda: call([t(2), t(3)], 1)),
    ("aten.einsum", lambda: call("ij,jk->ik", [t(2, 3), t(3, 2)])),
    ("aten.einsum", lambda: call("i,i->", [t(2), t(2)], path=[0, 1])),
    # bool for int, complex, big numbers, tensors for numbers, numbers for tensors, numpy scalars
    ("aten.select.int", lambda: call(t(2, 3), False, True)),
    ("aten.view.default", lambda: call(t(2, 3), [True, 6])),
    ("aten.add.Scalar", lambda: call(t(2), True)),
    ("aten.add.Scalar", lambda: call(t(2, dtype=torch.int64), True)),
    ("aten.add.Scalar", lambda: call(t(2), 1 + 2j)),
    ("aten.add.Scalar", lambda: call(t(2, dtype=torch.bool), True, True)),
    ("aten.add.Tensor", lambda: call(t(2), 1)),
    ("aten.add.Tensor", lambda: call(t(2, dtype=torch.int64), 1.5)),
    ("aten.add.Tensor", lambda: call(t(2), 1j)),
    ("aten.add.Tensor", lambda: call(t(2, dtype=torch.int64), True)),
    ("aten.add.Tensor", lambda: call(1, 2)),
    ("aten.add", lambda: call(t(2), 1)),
    ("aten.add", lambda: call(t(2, dtype=torch.int64), 1.5)),
    ("aten.add", lambda: call(t(2, dtype=torch.int64), True)),
    ("aten.mul", lambda: call(2.0, t(2))),
    ("aten.pow", lambda: call(t(2), t(2))),
    ("aten.select.int", lambda: call(t(2, 3), 0, torch.tensor(1))),
    ("aten.dropout", lambda: call(t(2), 1, False)),  # int for float
    ("aten.dropout", lambda: call(t(2), True, False)),
    ("aten.full", lambda: call([2], 3)),
    ("aten.full", lambda: call([2], True)),
    ("aten.full", lambda: call([2], 2.5, dtype=torch.int64)),
    ("aten.eq", lambda: call(t(2), t(2))),
    ("aten.equal", lambda: call(t(2), t(2))),
    ("aten.fill_", lambda: call(t(2), 3)),
    ("aten.div", lambda: call(t(2), 2, rounding_mode="floor")),
    ("aten.div", lambda: call(t(2), t(2), rounding_mode=None)),
    ("aten.div.Tensor_mode", lambda: call(t(2), t(2), rounding_mode="nonsense")),
    # dtype, layout, device, memory format, generator, factories
    ("aten.empty.memory_format", lambda: call([0], dtype=torch.float16, layout=torch.strided, device="cpu")),
    ("aten.ones", lambda: call([2], dtype=torch.int32, device=torch.device("cpu"), pin_memory=False)),
    ("aten.ones", lambda: call([2], device="meta")),
    ("aten.ones", lambda: call([2], device="meta:0")),
    ("aten.ones", lambda: call([2], dtype=torch.float64, layout=torch.sparse_coo)),
    ("aten.zeros", lambda: call(torch.Size([1, 2]))),
    ("aten.arange", lambda: call(4)),
    ("aten.arange", lambda: call(1, 4)),
    ("aten.arange", lambda: call(0, 4, 2)),
    ("aten.arange", lambda: call(0, 4, 2.5, dtype=torch.float64)),
    ("aten.eye", lambda: call(2)),
    ("aten.eye", lambda: call(2, 3)),
    ("aten.scalar_tensor", lambda: call(2.5)),
    ("aten.scalar_tensor", lambda: call(True, dtype=torch.bool)),
    ("aten.rand", lambda: call([3])),
    ("aten.rand", lambda: call([3], generator=generator())),
    ("aten.randint", lambda: call(10, [3])),
    ("aten.randint", lambda: call(2, 10, [3])),
    ("aten.randperm", lambda: call(4)),
    ("aten.bernoulli", lambda: call(torch.full((4,), 0.5))),
    ("aten.bernoulli", lambda: call(t(4), 0.5)),
    ("aten.bernoulli", lambda: call(torch.full((4,), 0.5), generator=generator())),
    ("aten.normal_", lambda: call(t(3), 0, 1, generator=generator())),
    ("aten.uniform_", lambda: call(t(3))),
    ("aten.ones_like", lambda: call(t(2, 3), memory_format=torch.preserve_format)),
    ("aten.clone", lambda: call(t(1, 2, 2, 2), memory_format=torch.channels_last)),
    ("aten.contiguous", lambda: call(t(1, 2, 2, 2), memory_format=torch.channels_last)),
    ("aten._to_copy", lambda: call(t(2), dtype=torch.float64)),
    ("aten.to.dtype", lambda: call(t(2), torch.float64)),
    ("aten.to.dtype", lambda: call(t(2), torch.float32)),  # the same tensor
    ("aten.to", lambda: call(t(2), torch.device("cpu"), torch.float64)),
    ("aten.to", lambda: call(t(2), "cpu", torch.float64)),
    ("aten.to", lambda: call(t(2), dtype=torch.float64, layout=torch.strided, device="meta")),
    # out=, in place, views, several results, lists of results, no tensors, none at all
    ("aten.add.out", lambda: call(t(2), t(2), out=t(2))),
    ("aten.add.out", lambda: call(t(2), t(2), out=t(3))),  # resized with a warning
    ("aten.add", lambda: call(t(2), t(2), out=t(2))),
    ("aten.add.out", lambda: call(grad(2), t(2), out=t(2))),
    ("aten.add.out", lambda: call(t(2), t(2), out=t(2, dtype=torch.int64))),
    ("aten.max.dim_max", lambda: call(t(2, 3), 1, max=t(2), max_values=t(2, dtype=torch.int64))),
    ("aten.add_.Tensor", lambda: call(t(2), t(2))),
    ("aten.add_", lambda: call(view(2), t(2))),
    ("aten.add_.Tensor", lambda: call(grad(2), t(2))),  # a leaf that requires grad
    ("aten.add_.Tensor", lambda: call(inference(2), t(2))),
    ("aten.relu_", lambda: call(t(2).neg())),
    ("aten.copy_", lambda: call(t(2), t(2, dtype=torch.int64))),
    ("aten.transpose.int", lambda: call(t(2, 3), 0, 1)),
    ("aten.t_", lambda: call(t(2, 3))),
    ("aten.detach", lambda: call(grad(2))),
    ("aten.slice.Tensor", lambda: call(t(5), 0, 1, None, 2)),
    ("aten.expand", lambda: call(t(1, 3), [2, -1], implicit=False)),
    ("aten.as_strided", lambda: call(t(6), [2, 2], [1, 2], 1)),
    ("aten.unsqueeze", lambda: call(grad(2), 0)),
    ("aten.max.dim", lambda: call(t(2, 3), 1)),
    ("aten.max", lambda: call(t(2, 3))),
    ("aten.max", lambda: call(t(2, 3), 1, True)),
    ("aten.topk", lambda: call(grad(4), 2)),
    ("aten.sort", lambda: call(t(3))),
    ("aten.sort", lambda: call(t(3), stable=True)),
    ("aten.native_layer_norm", lambda: call(t(2, 3), [3], t(3), None, 1e-5)),
    ("aten.native_layer_norm", lambda: call(grad(2, 3), [3], grad(3), grad(3), 1e-5)),
    ("aten.unbind", lambda: call(grad(2, 3))),
    ("aten.split", lambda: call(t(4), 2)),
    ("aten.split_with_sizes", lambda: call(t(4), (1, 3))),
    ("aten.chunk", lambda: call(t(4), 2)),
    ("aten.nonzero_numpy", lambda: call(t(2, 2))),
    ("aten.item", lambda: call(torch.tensor(2.5))),
    ("aten.item", lambda: call(torch.tensor(True))),
    ("aten.item", lambda: call(torch.tensor(1 + 2j))),
    ("aten.item", lambda: call(t(2))),
    ("aten._local_scalar_dense", lambda: call(torch.tensor(3))),
    ("aten.size.int", lambda: call(t(2, 3), 1)),
    ("aten.sym_size", lambda: call(t(2, 3), 1)),
    ("aten.sym_numel", lambda: call(t(2, 3))),
    ("aten.is_nonzero", lambda: call(t(1))),
    ("aten.result_type.Tensor", lambda: call(t(2), t(2, dtype=torch.float64))),
    ("aten.promote_types", lambda: call(torch.float16, torch.int64)),
    ("aten.can_cast", lambda: call(torch.float16, torch.int64)),
    ("aten._has_same_storage_numel", lambda: call(t(2), t(2))),
    ("aten._assert_async", lambda: call(torch.tensor(True))),
    ("aten._debug_has_internal_overlap", lambda: call(t(2))),
    ("aten.tril_indices", lambda: call(2, 2)),
    ("aten.histogramdd", lambda: call(t(4, 2), [2, 2])),
    ("aten.histogramdd", lambda: call(t(4, 2), [2, 2], range=[0.0, 8.0, 0.0, 8.0])),
    ("aten.layer_norm", lambda: call(t(2, 3), (3,))),
    (
        "aten.lstm.input",
        lambda: call(t(1, 1, 2), [t(1, 1, 1)] * 2, [t(4, 2), t(4, 1)], False, 1, 0, False, False, False),
    ),
    ("aten.scaled_dot_product_attention", lambda: call(t(1, 2, 2), t(1, 2, 2), t(1, 2, 2), is_causal=True)),
    ("aten.embedding", lambda: call(t(3, 2), torch.tensor([0, 2]))),
    ("aten.nll_loss", lambda: call(t(2, 3), torch.tensor([0, 2]))),
    ("quantized.add", lambda: call(quantized(2), quantized(2), 0.1, 0)),
    # kinds of tensors
    ("aten.mul.Tensor", lambda: call(t(2, dtype=torch.complex64).conj(), t(2))),
    ("aten.add.Tensor", lambda: call(torch._neg_view(t(2)), t(2))),
    ("aten.add.Tensor", lambda: call(t(2).to("meta"), t(2).to("meta"))),
    ("aten.add.Tensor", lambda: call(t(2).to("meta"), t(2))),
    ("aten.add.Tensor", lambda: call(t(2, 2).to_sparse(), t(2, 2).to_sparse())),
    ("aten.mm", lambda: call(t(2, 2).to_sparse_csr(), t(2, 2))),
    ("aten.add.Tensor", lambda: call(quantized(2), quantized(2))),
    ("aten.relu", lambda: call(quantized(2))),
    ("aten.relu", lambda: call(torch.nested.nested_tensor([t(2), t(3)]))),
    ("aten.add.Tensor", lambda: call(torch.nn.Parameter(t(2)), t(2))),
    ("aten.mul.Tensor", lambda: call(grad(2), grad(2))),
    ("aten.mul.Tensor", lambda: call(inference(2), t(2))),
    ("aten.mul.Tensor", lambda: call(inference(2), grad(2))),
    ("aten.view.default", lambda: call(inference(2, 2), [4])),
    ("aten.relu", lambda: call(torch._efficientzerotensor(2))),
    # what only the kernel refuses
    ("aten.relu.default", lambda: call(None)),
    ("aten.add.Tensor", lambda: call(t(2), other=None)),
    ("aten.cat.default", lambda: call({t(2)})),
    ("aten.dropout.default", lambda: call(t(2), 0.5, 1)),
    ("aten.add.out", lambda: call(t(2), t(2), out=None)),
    ("aten.conv2d", lambda: call(t(1, 1, 4, 4), t(1, 1, 2, 2), t(1), [2, 2], [0, 0])),
    ("aten.view.default", lambda: call(t(2), [-2])),
    ("aten.ones", lambda: call([-1])),
]


def quantized(*shape: int) -> Tensor:
    return torch.quantize_per_tensor(t(*shape), 0.1, 0, torch.quint8)


def numbered(cases: list[tuple[str, Callable[[], Arguments]]]) -> Any:
    names = [name for name, _ in cases]
    ids = [f"{name}-{names[: index + 1].count(name)}" for index, name in enumerate(names)]
    return pytest.mark.parametrize(("name", "make"), cases, ids=ids)


@numbered(BOXED)
def test_a_call_does_what_it_does_without_accelerate(name: str, make: Callable[[], Arguments]) -> None:
    compare(operator(name), make)


# Arguments that PyTorch refuses, or converts in ways of its own.
PYTORCHS: list[tuple[str, Callable[[], Arguments]]] = [
    ("aten.relu.default", lambda: call()),
    ("aten.relu.default", lambda: call(t(2), t(2))),
    ("aten.relu.default", lambda: call(t(2), self=t(2))),
    ("aten.relu.default", lambda: call(t(2), unknown=1)),
    ("aten.relu.default", lambda: call("text")),
    ("aten.relu.default", lambda: call([t(2)])),
    ("aten.relu", lambda: call()),
    ("aten.relu", lambda: call(t(2), 1)),
    ("aten.add.Tensor", lambda: call(t(2), "text")),
    ("aten.add.Tensor", lambda: call(t(2), t(2), 2)),  # alpha is for keywords only
    ("aten.add.Tensor", lambda: call(t(2), t(2), alpha="text")),
    ("aten.add.Tensor", lambda: call(t(2), t(2), alpha=None)),
    ("aten.add", lambda: call(t(2), "text")),
    ("aten.add", lambda: call(t(2))),
    ("aten.add", lambda: call(t(2), t(2), beta=2)),
    ("aten.add", lambda: call()),
    ("aten.view", lambda: call(t(2), "text")),
    ("aten.view.default", lambda: call(t(2), 2.5)),
    ("aten.view.default", lambda: call(t(2), [2.5])),
    ("aten.view.default", lambda: call(t(2), ["text"])),
    ("aten.view.default", lambda: call(t(2), [2**70])),
    ("aten.view.default", lambda: call(t(2), None)),
    ("aten.select.int", lambda: call(t(2), 0, 2**63)),
    ("aten.select.int", lambda: call(t(2), 0.0, 1)),
    ("aten.select.int", lambda: call(t(2), 0, 1 + 0j)),
    ("aten.select.int", lambda: call(t(2), 0, t(2))),
    ("aten.cat.default", lambda: call(t(2))),
    ("aten.cat.default", lambda: call([t(2), None])),
    ("aten.cat.default", lambda: call([t(2), 1])),
    ("aten.cat.default", lambda: call(iter([t(2)]))),
    ("aten.cat.default", lambda: call("text")),
    ("aten.cat", lambda: call([t(2), "text"])),
    ("aten.index.Tensor", lambda: call(t(2), [1])),
    ("aten.index.Tensor", lambda: call(t(2), None)),
    ("aten.avg_pool2d.default", lambda: call(t(1, 4, 4), 2.0)),
    ("aten.ones.default", lambda: call([2], dtype="float32")),
    ("aten.ones.default", lambda: call([2], device="no such device")),
    ("aten.ones.default", lambda: call([2], layout="strided")),
    ("aten.softmax.int", lambda: call(t(2), 0, float)),
    ("aten.clone.default", lambda: call(t(2), memory_format="channels_last")),
    ("aten.rand.generator", lambda: call([2], generator="text")),
    ("aten.gelu.default", lambda: call(t(2), approximate=1)),
    ("aten.dropout.default", lambda: call(t(2), "0.5", True)),
    ("aten._foreach_add.ScalarList", lambda: call([t(2)], ["text"])),
    ("aten.upsample_nearest2d.vec", lambda: call(t(1, 1, 2, 2), None, ["text"])),
    ("aten.add.out", lambda: call(t(2), t(2))),
    ("aten.add.out", lambda: call(t(2), t(2), out=(t(2),))),
    ("aten.add_.Tensor", lambda: call(1)),
    ("aten.conv2d", lambda: call(t(1, 1, 4, 4), t(1, 1, 2, 2), t(1), 2, [0, 0])),
    ("aten.add.Scalar", lambda: call(t(2), torch.tensor(2.5))),
    ("aten.add.Scalar", lambda: call(t(2), np.float32(2.5))),
    ("aten.pow.Tensor_Scalar", lambda: call(t(2), torch.tensor(3))),
]


@numbered(PYTORCHS)
def test_a_call_that_pytorch_refuses_is_refused_in_the_same_words(name: str, make: Callable[[], Arguments]) -> None:
    assert compare(operator(name), make, "pytorch").raised is not None


# A packet whose first overload does not fit.
LATER: list[tuple[str, Callable[[], Arguments]]] = [
    ("aten.lerp", lambda: call(t(2), t(2), t(2))),
    ("aten.view", lambda: call(t(2), torch.int32)),
    ("aten._foreach_add", lambda: call([t(2)], [t(2)])),
    ("aten.pow", lambda: call(t(2), 2)),
    ("aten.pow", lambda: call(2, t(2))),
    ("aten.eq", lambda: call(t(2), 1)),
    ("aten.fill_", lambda: call(t(2), torch.tensor(4))),
    ("aten.linspace", lambda: call(0, 1, 3)),
    ("aten.to", lambda: call(t(2), torch.float64)),
    ("aten.to", lambda: call(t(2), t(1, dtype=torch.float64))),
    ("aten.split", lambda: call(t(4), [1, 3])),
    ("aten.sym_size", lambda: call(t(2, 3))),
    ("aten.to", lambda: call(t(2), "cpu", torch.float64)),
    ("aten.index_fill", lambda: call(t(3), 0, torch.tensor([1]), 7)),
    ("aten.bitwise_and", lambda: call(t(2, dtype=torch.int64), 1)),
    ("aten.squeeze", lambda: call(t(1, 2, 1), [0, 2])),
    ("aten.std", lambda: call(t(2, 3), [1], correction=0)),
    ("aten.norm", lambda: call(t(2, 3), 2, [1])),
]


@numbered(LATER)
def test_a_packet_takes_the_overload_that_pytorch_takes(name: str, make: Callable[[], Arguments]) -> None:
    compare(operator(name), make)


CONVERTED: list[tuple[str, Callable[[], Arguments]]] = [
    ("aten.select.int", lambda: call(t(2, 3), np.int64(1), 0)),
    ("aten.view.default", lambda: call(t(2, 3), [np.int64(6)])),
    ("aten.view.default", lambda: call(t(2, 3), np.array([3, 2]))),
    ("aten.view.default", lambda: call(t(2, 3), torch.tensor([3, 2]))),
    ("aten.view.default", lambda: call(t(2, 3), [torch.tensor(6)])),
    ("aten.view.default", lambda: call(t(2, 3), range(6, 7))),
    ("aten.add.Scalar", lambda: call(t(2), np.float64(2.5))),
    ("aten.add.Scalar", lambda: call(t(2), np.bool_(True))),
    ("aten.add.Scalar", lambda: call(t(2), np.int64(2))),
    ("aten.add.Tensor", lambda: call(t(2), np.float64(2.5))),
    ("aten.add.Tensor", lambda: call(t(2), np.array([1.0, 2.0]))),
    ("aten.add", lambda: call(t(2), np.float32(2.5))),
    ("aten.dropout.default", lambda: call(t(2), np.float32(0.5), False)),
    ("aten.dropout.default", lambda: call(t(2), torch.tensor(0.5), False)),
    ("aten.dropout.default", lambda: call(t(2), 0.5, np.bool_(False))),
    ("aten.dropout.default", lambda: call(t(2), 0.5, torch.tensor(False))),
    ("aten.dropout.default", lambda: call(t(2), 0.5, None)),
    ("aten.select.int", lambda: call(t(2, 3), Index(), 0)),
    ("aten.select.int", lambda: call(t(2, 3), Raising(), 0)),
    ("aten.select.int", lambda: call(t(2, 3), IntSubclass(1), 0)),
    ("aten.add.Scalar", lambda: call(t(2), FloatSubclass(1.5))),
    ("aten.add.Scalar", lambda: call(t(2), 2**70)),
    ("aten.dropout.default", lambda: call(t(2), 2**70, False)),
    ("aten.cat.default", lambda: call(ListSubclass([t(2)]))),
    ("aten.cat.default", lambda: call(t(2, 2))),
    ("aten.cat.default", lambda: call({0: t(2)})),
    ("aten.ones.default", lambda: call([2], dtype=6)),
    ("aten.ones.default", lambda: call([2], layout=0)),
    ("aten.ones.default", lambda: call([2], device=0)),
    ("aten.sum.dim_IntList", lambda: call(t(2, 3), torch.tensor(1))),
    ("aten.gelu.default", lambda: call(t(2), approximate=StrSubclass("tanh"))),
]


class Index:
    def __index__(self) -> int:
        return 1


class Raising:
    def __index__(self) -> int:
        raise ValueError("from __index__")


class IntSubclass(int):
    pass


class FloatSubclass(float):
    pass


class StrSubclass(str):
    __slots__ = ()


class ListSubclass(list[Tensor]):
    pass


@numbered(CONVERTED)
def test_a_value_that_needs_a_conversion_is_converted_or_refused_as_by_pytorch(
    name: str, make: Callable[[], Arguments]
) -> None:
    op = operator(name)
    expected = outcome(op, make)
    dutyfree.accelerate(op)
    assert outcome(op, make) == expected
    assert sum(calls_of(op).values()) > 0


# --- modes, transforms, subclasses -----------------------------------------------------------------------------------


def twice(ops: list[Any], run: Callable[[], Any]) -> Any:
    """Runs code without and with accelerate; asserts that it returned equal values, and that every one of the operators
    was boxed."""
    expected = run()
    for op in ops:
        dutyfree.accelerate(op)
    dutyfree.reset_stats()
    found = run()
    assert found == expected
    for op in ops:
        took(op, "boxed")
    return found


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func, shown(args), shown(kwargs), [cls.__name__ for cls in types]))
        return func(*args, **(kwargs or {}))


def shown(value: Any) -> str:
    def show(member: Any) -> Any:
        if isinstance(member, torch.Generator):
            return "generator"
        return (tuple(member.shape), member.dtype) if isinstance(member, Tensor) else member

    return repr(torch.utils._pytree.tree_map(show, value))


SEEN: list[tuple[str, Callable[[], Arguments]]] = [
    ("aten.add.Tensor", lambda: call(t(2), 1, alpha=2)),
    ("aten.cat", lambda: call((t(2), t(2)))),
    ("aten.index.Tensor", lambda: call(t(2, 2), [None, torch.tensor([0])])),
    ("aten.ones", lambda: call(torch.Size([2]), dtype=torch.float16, device="cpu")),
    ("aten.clone", lambda: call(t(1, 1, 1, 1), memory_format=torch.channels_last)),
    ("aten.sum.dim_IntList", lambda: call(t(2, 2), 1, dtype=torch.float64)),
    ("aten.add.out", lambda: call(t(2), t(2), out=t(2))),
    ("aten.relu", lambda: call(grad(2))),
    ("aten.rand", lambda: call([2], generator=generator())),
]


@numbered(SEEN)
def test_a_dispatch_mode_sees_what_it_sees_without_accelerate(name: str, make: Callable[[], Arguments]) -> None:
    op = operator(name)

    def run() -> list[Any]:
        arguments = make()
        with Recorder() as mode:
            op(*arguments.args, **arguments.kwargs)
        return mode.seen

    assert qualname(twice([op], run)[0][0]).split(".")[0] == qualname(op).split(".")[0]


def test_a_dispatch_mode_that_calls_boxed_operators_inside_a_boxed_call() -> None:
    class Calling(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inner = aten.cat.default([aten.mul.Tensor(x, 2) for x in args[0]])
            return aten.add.Tensor(inner, func(*args, **(kwargs or {})))

    def run() -> list[float]:
        tensors = [t(2), t(1)]
        with Calling():
            result = aten.cat.default(tensors)
        return result.tolist()

    assert twice([aten.cat.default, aten.mul.Tensor, aten.add.Tensor], run) == [3.0, 6.0, 3.0]


def test_boxed_calls_nest_deeply() -> None:
    class Nested(TorchDispatchMode):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.depth = depth

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if self.depth == 0:
                return func(*args)
            with Nested(self.depth - 1):
                return aten.cat.default([aten.cat.default(args[0]), one])

    def run() -> list[float]:
        with Nested(5):
            result = aten.cat.default([one])
        return result.tolist()

    one = t(1)
    assert len(twice([aten.cat.default], run)) > 5


def test_an_error_of_a_dispatch_mode_comes_out_of_the_boxed_call() -> None:
    class Mine(Exception):
        pass

    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise Mine("from the mode")

    def run() -> tuple[Any, Any]:
        with pytest.raises(Mine, match="from the mode") as caught, Refusing():
            aten.relu.default(x)
        return caught.value.args, caught.value.__cause__

    x = t(2)
    twice([aten.relu.default], run)


def test_a_function_mode_sees_the_operator_and_pytorch_makes_the_call() -> None:
    class FunctionRecorder(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append((func, shown(args), shown(kwargs)))
            return func(*args, **(kwargs or {}))

    def run() -> list[Any]:
        with FunctionRecorder() as mode:
            aten.add.Tensor(x, 1)
            aten.cat((x, x))
            aten.add(x, x)
        return mode.seen

    x = t(2)
    expected = run()
    dutyfree.accelerate("aten")
    assert run() == expected
    assert [func for func, *_ in expected] == [aten.add.Tensor, aten.cat, aten.add]
    assert calls_of(aten.cat)["pytorch"] == 1
    assert calls_of(aten.cat)["boxed"] == 1  # the mode's own call, which no mode sees


class Overriding(Tensor):
    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append((func, [kind.__name__ for kind in types], len(args), sorted(kwargs or {})))
        return super().__torch_function__(func, types, args, kwargs or {})


class Plain(Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


def overriding(*shape: int) -> Tensor:
    return t(*shape).as_subclass(Overriding)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("aten.relu.default", lambda: call(overriding(2))),
        ("aten.relu", lambda: call(self=overriding(2))),
        ("aten.add.Tensor", lambda: call(t(2), other=overriding(2))),
        ("aten.add", lambda: call(t(2), overriding(2))),
        ("aten.cat.default", lambda: call([t(2), overriding(2)])),
        ("aten.cat", lambda: call(tensors=(overriding(2), t(2)))),
        ("aten.index.Tensor", lambda: call(t(2), [torch.tensor([0]).as_subclass(Overriding)])),
        ("aten.clamp.Tensor", lambda: call(t(2), max=overriding(2))),
        ("aten.add.out", lambda: call(t(2), t(2), out=overriding(2))),
        # where no tensor belongs
        ("aten.select.int", lambda: call(t(2), 0, torch.tensor(1).as_subclass(Overriding))),
        ("aten.view.default", lambda: call(t(2), [torch.tensor(2).as_subclass(Overriding)])),
        ("aten.view.default", lambda: call(t(2), torch.tensor([2]).as_subclass(Overriding))),
        ("aten.cat.default", lambda: call(overriding(2, 2))),
        ("aten.add.Scalar", lambda: call(t(2), overriding())),
        ("aten.dropout.default", lambda: call(t(2), 0.5, torch.tensor(False).as_subclass(Overriding))),
        ("aten.gelu.default", lambda: call(t(2), approximate=overriding(1))),
        ("aten.ones.default", lambda: call([2], dtype=overriding(1))),
        ("aten.ones.default", lambda: call([2], device=overriding(1))),
        # where there are too many, or under an unknown name, or behind a value that is refused
        ("aten.relu.default", lambda: call(t(2), overriding(2))),
        ("aten.relu.default", lambda: call(t(2), unknown=overriding(2))),
        ("aten.add.Tensor", lambda: call("text", overriding(2))),
        ("aten.add", lambda: call("text", overriding(2))),
        ("aten.cat.default", lambda: call([None, overriding(2)])),
        ("aten.cat.default", lambda: call([[overriding(2)]])),
    ],
)
def test_torch_function_of_a_subclass_is_asked_as_without_accelerate(name: str, make: Callable[[], Arguments]) -> None:
    op = operator(name)
    Overriding.seen.clear()
    expected = outcome(op, make), list(Overriding.seen)
    dutyfree.accelerate(op)
    Overriding.seen.clear()
    assert (outcome(op, make), Overriding.seen) == expected
    assert calls_of(op)["pytorch"] > 0 or not expected[1]
    # Its own default implementation calls the operator once more, with __torch_function__ off.
    if expected[1] and expected[0].raised is None:
        assert calls_of(op)["boxed"] > 0


@pytest.mark.parametrize("name", ["aten.relu.default", "aten.mul", "aten.cat"])
def test_a_subclass_without_torch_function_is_boxed(name: str) -> None:
    x = t(2).as_subclass(Plain)
    make = {"aten.cat": lambda: call([x, x]), "aten.mul": lambda: call(x, x)}.get(name, lambda: call(x))
    compare(operator(name), make)


class Wrapper(Tensor):
    """A subclass with __torch_dispatch__."""

    elem: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elem: Tensor) -> "Wrapper":
        self = Tensor._make_wrapper_subclass(cls, elem.shape, dtype=elem.dtype, requires_grad=elem.requires_grad)
        self.elem = elem
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrap = torch.utils._pytree.tree_map_only(Wrapper, lambda wrapper: wrapper.elem, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(Tensor, Wrapper, func(*unwrap[0], **unwrap[1]))


def test_a_wrapper_subclass_is_dispatched_in_its_torch_dispatch() -> None:
    def run() -> list[Any]:
        results = [aten.relu.default(Wrapper(t(2))), aten.cat.default([Wrapper(t(2)), t(2)])]
        return [(type(result), result.elem.tolist()) for result in results]

    assert twice([aten.relu.default, aten.cat.default], run)[0] == (Wrapper, [1.0, 2.0])


def test_fake_tensors_with_dynamic_shapes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def run() -> list[Any]:
        from torch._dynamo.source import ConstantSource

        mode = FakeTensorMode(shape_env=ShapeEnv())
        x = mode.from_tensor(t(4, 6), source=ConstantSource("x"))
        with mode:
            rows, columns = x.shape
            results = [
                aten.view.default(x, [rows * columns]),
                aten.view(x, (columns, rows)),
                aten.ones.default([rows, 2]),
                aten.select.int(x, 0, rows - 1),
                aten.slice.Tensor(x, 0, 0, rows - 1),
                aten.cat.default([x, x]),
                aten.add.Tensor(x, rows),
                aten.full.default([rows], columns),
            ]
            sizes = [str(aten.sym_size.int(x, 0)), str(aten.sym_numel.default(x))]
        return [(type(result).__name__, str(result.shape), str(result.stride())) for result in results] + sizes

    names = ["view", "ones", "select", "slice", "cat", "add", "full", "sym_size", "sym_numel"]
    expected = run()
    dutyfree.accelerate("aten")
    assert run() == expected
    assert "s" in expected[0][1]
    for name in names:
        assert calls_of(getattr(aten, name))["boxed"] > 0, name


def test_make_fx_traces_boxed_operators() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x: Tensor) -> Tensor:
        return aten.cat.default([aten.mul.Tensor(x, 2), aten.relu(x)])

    for mode in ("real", "fake", "symbolic"):
        twice([aten.mul.Tensor, aten.relu], lambda mode=mode: make_fx(function, tracing_mode=mode)(t(3)).code)
        dutyfree.restore()


def test_functionalization_and_functional_tensor_mode() -> None:
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    def functionalized() -> Any:
        def function(x: Tensor) -> Tensor:
            y = aten.view.default(x, [4])
            aten.add_.Tensor(y, 1)
            return x

        return torch.func.functionalize(function)(t(2, 2)).tolist()

    def mode() -> Any:
        given = t(2, 2)
        with FunctionalTensorMode():
            x = FunctionalTensor.to_functional(given)
            y = aten.view.default(x, [4])
            aten.add_.Tensor(y, 1)
            return type(y).__name__, torch._from_functional_tensor(x.elem).tolist()

    assert twice([aten.view.default, aten.add_.Tensor], functionalized) == [[2.0, 3.0], [4.0, 5.0]]
    dutyfree.restore()
    assert twice([aten.view.default, aten.add_.Tensor], mode)[0] == "FunctionalTensor"


def test_functorch_transforms() -> None:
    def f(x: Tensor) -> Tensor:
        return aten.sum(aten.mul.Tensor(aten.sin.default(x), x))

    def run() -> list[Any]:
        x, y = t(3), t(2, 3)
        return [
            torch.func.grad(f)(x).tolist(),
            torch.func.vmap(f)(y).tolist(),
            torch.func.vmap(torch.func.grad(f))(y).tolist(),
            [result.tolist() for result in torch.func.jvp(f, (x,), (x,))],
            torch.func.hessian(f)(x).tolist(),
            torch.func.jacrev(lambda x: aten.cat.default([x, x]))(x).tolist(),
            torch.func.vmap(aten.rand_like.default, randomness="same")(y).shape,
        ]

    twice([aten.sum, aten.mul.Tensor, aten.sin.default, aten.cat.default], run)


def test_an_operator_without_a_batching_rule_warns_or_fails_as_without_accelerate() -> None:
    def run() -> list[Any]:
        results: list[Any] = []
        for op in (aten.nonzero.default, aten.item.default, aten.histc.default):
            try:
                results.append(torch.func.vmap(op)(t(2, 1)))
            except Exception as error:
                results.append((type(error), str(error)))
        return [result.tolist() if isinstance(result, Tensor) else result for result in results]

    twice([aten.nonzero.default, aten.item.default], run)


def test_forward_mode_derivatives() -> None:
    import torch.autograd.forward_ad as forward

    def run() -> list[Any]:
        with forward.dual_level():
            result = aten.mul.Tensor(forward.make_dual(t(2), t(2)), t(2))
            primal, tangent = forward.unpack_dual(result)
        return [primal.tolist(), tangent.tolist()]

    assert twice([aten.mul.Tensor], run) == [[1.0, 4.0], [1.0, 4.0]]


def test_autocast() -> None:
    def run() -> list[Any]:
        with torch.autocast("cpu", torch.bfloat16):
            results = [aten.mm.default(t(2, 2), t(2, 2)), aten.mm(t(2, 2), t(2, 2)), aten.cat([t(2), t(2).bfloat16()])]
        return [(result.dtype, result.tolist()) for result in results]

    assert twice([aten.mm.default, aten.cat], run)[0][0] == torch.bfloat16


def test_inference_mode_and_no_grad() -> None:
    def run() -> list[Any]:
        x = grad(2)
        with torch.inference_mode():
            results = [aten.relu.default(x), aten.view.default(x, [2]), aten.ones.default([2])]
        with torch.no_grad():
            results.append(aten.relu.default(x))
        return [(result.is_inference(), result.requires_grad, result._is_view()) for result in results]

    assert twice([aten.relu.default, aten.view.default, aten.ones.default], run)[0] == (True, False, False)


def test_backward_through_boxed_calls() -> None:
    def run() -> list[Any]:
        x, w = grad(2, 3), grad(3, 2)
        y = aten.mm.default(x, w)
        aten.unbind(aten.cat([y, aten.sin(y)]))
        aten.add_.Tensor(y, 1)
        values, indices = aten.max.dim(y, 1)
        total = aten.sum(aten.mul.Tensor(values, 2))
        total.backward()
        return [x.grad.tolist(), w.grad.tolist(), type(y.grad_fn).__name__, y._version, indices.requires_grad]

    twice([aten.mm.default, aten.unbind, aten.cat, aten.sin, aten.add_.Tensor, aten.max.dim, aten.sum], run)


def test_hooks_and_anomaly_detection_see_a_boxed_call() -> None:
    def run() -> list[Any]:
        saved: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(tuple(x.shape)) or x, lambda x: x):
            aten.mul.Tensor(grad(2), grad(2))
        with torch.autograd.detect_anomaly(check_nan=False):
            result = aten.mul.Tensor(grad(2), grad(2))
        return [saved, sorted(result.grad_fn.metadata)]

    with pytest.warns(UserWarning, match="Anomaly Detection"):
        assert twice([aten.mul.Tensor], run) == [[(2,), (2,)], ["traceback_"]]


def test_the_result_of_an_in_place_operator_is_the_object_that_was_given() -> None:
    dutyfree.accelerate("aten")
    x, out = t(2), t(2)
    x.note = "kept"  # type: ignore[attr-defined]
    assert aten.add_.Tensor(x, 1) is x
    assert aten.relu_(x) is x
    assert aten.add.out(x, x, out=out) is out
    assert aten.contiguous.default(x) is x
    parameter = torch.nn.Parameter(t(2))
    assert aten.contiguous.default(parameter) is parameter
    plain = t(2).as_subclass(Plain)
    assert aten.add_.Tensor(plain, 1) is plain
    for name in ("add_", "relu_", "contiguous"):
        took(getattr(aten, name), "boxed")


def test_views_share_memory_and_know_their_base() -> None:
    dutyfree.accelerate("aten")
    base = t(2, 3)
    seen = aten.view.default(base, [6])
    assert seen._base is base
    rows = aten.unbind(base)
    assert [row._base is base for row in rows] == [True, True]
    aten.fill_.Scalar(rows[1], 9)
    assert seen.tolist() == [1, 2, 3, 9, 9, 9]
    assert base._version == seen._version == 1
    took(aten.unbind, "boxed")


def test_the_profiler_shows_the_same_events() -> None:
    def run() -> list[Any]:
        with torch.profiler.profile(record_shapes=True) as profiler:
            aten.add.Tensor(t(2, 3), 1)
            aten.cat((t(2), t(2)))
        return [(e.name, e.input_shapes) for e in profiler.events() if e.name.startswith("aten::")]

    assert [name for name, _ in twice([aten.add.Tensor, aten.cat], run)].count("aten::cat") == 1


def test_torchscript_traces_and_scripts_boxed_operators() -> None:
    def function(x: Tensor) -> Tensor:
        return aten.mul(aten.relu(x), 2)

    def traced() -> str:
        return re.sub("#.*", "", str(torch.jit.trace(function, (t(2),)).graph))  # without the lines of code

    def scripted() -> tuple[str, Any]:
        compiled = torch.jit.script(scriptable)
        return str(compiled.graph).split("#")[0], compiled(t(2)).tolist()

    assert "aten::relu" in twice([aten.relu, aten.mul], traced)
    dutyfree.restore()
    expected = scripted()
    dutyfree.accelerate("aten")
    assert scripted() == expected


def scriptable(x: Tensor) -> Tensor:
    return torch.ops.aten.relu(x)


def test_torch_compile_traces_boxed_operators() -> None:
    graphs: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module.code)
        return module

    def run() -> Any:
        graphs.clear()
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: aten.cat.default([aten.relu(x), x]), backend=backend, fullgraph=True)
        return compiled(t(2)).tolist(), list(graphs)

    expected = run()
    dutyfree.accelerate("aten")
    assert run() == expected
    assert "torch.ops.aten.relu" in expected[1][0]


# --- the interpreter lock, threads, memory ---------------------------------------------------------------------------


def test_other_threads_run_while_a_kernel_runs() -> None:
    started = threading.Event()
    ticks: list[float] = []

    def tick() -> None:
        started.set()
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    done = threading.Event()
    dutyfree.accelerate("aten")
    x = torch.ones(1500, 1500, dtype=torch.float64)
    thread = threading.Thread(target=tick)
    thread.start()
    started.wait()
    try:
        begin = time.perf_counter()
        aten.linalg_matrix_exp.default(x * 1e-3)
        end = time.perf_counter()
    finally:
        done.set()
        thread.join()
    took(aten.linalg_matrix_exp, "boxed")
    within = [moment for moment in ticks if begin < moment < end]
    assert len(within) > (end - begin) / 0.05


def test_threads_call_boxed_operators_at_once() -> None:
    dutyfree.accelerate("aten")
    failures: list[Any] = []

    def work(number: int) -> None:
        try:
            for index in range(300):
                tensors = [torch.full((1 + number,), float(index)), torch.full((2,), float(number))]
                result = aten.cat.default(tensors)
                assert result.tolist() == [float(index)] * (1 + number) + [float(number)] * 2
                if index % 3 == 0:
                    with Recorder():
                        aten.cat.default(tensors[:1])
                if index % 5 == 0:
                    with pytest.raises(RuntimeError, match="Sizes of tensors"):
                        aten.cat.default([t(2, 2), t(3, 3)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_accelerate_and_restore_while_other_threads_call() -> None:
    failures: list[Any] = []
    done = threading.Event()

    def work() -> None:
        try:
            while not done.is_set():
                assert aten.cat.default([t(1), t(1)]).tolist() == [1.0, 1.0]
                assert aten.add(t(1), 1).tolist() == [2.0]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        for op in (aten.cat, aten.add):
            dutyfree.accelerate(op)
        dutyfree.restore()
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


LEAKS: list[tuple[str, Callable[[], Arguments]]] = [
    ("aten.add.Tensor", lambda: call(t(2), 1, alpha=2)),
    ("aten.cat.default", lambda: call([t(2), t(2)], dim=0)),
    ("aten.cat.default", lambda: call([t(2), t(2, 2)])),
    ("aten.cat.default", lambda: call([t(2), None])),
    ("aten.index.Tensor", lambda: call(t(2), [torch.tensor([0])])),
    ("aten.index.Tensor", lambda: call(t(2), [None, 1])),
    ("aten.view.default", lambda: call(t(2), [1, 2])),
    ("aten.view.default", lambda: call(t(2), [1, "text"])),
    ("aten.relu.default", lambda: call(t(2), unknown=1)),
    ("aten.unbind.int", lambda: call(t(2, 2))),
    ("aten.max.dim", lambda: call(t(2, 2), 1)),
    ("aten.einsum.default", lambda: call("i->", [t(2)])),
    ("aten.ones.default", lambda: call([2], device="cpu", dtype=torch.float64)),
    ("aten.add_.Tensor", lambda: call(t(2), t(2))),
    ("aten.mul.Tensor", lambda: call(grad(2), grad(2))),
    ("aten._foreach_add.ScalarList", lambda: call([t(2)], [1.5])),
]


@numbered(LEAKS)
def test_nothing_leaks(name: str, make: Callable[[], Arguments]) -> None:
    op = operator(name)
    dutyfree.accelerate(op)
    arguments = make()
    values = [*arguments.args, *arguments.kwargs.values()]
    values += [item for value in values if isinstance(value, list) for item in value]
    values = [value for value in values if isinstance(value, (Tensor, list))]

    def run(count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(Exception):
                op(*arguments.args, **arguments.kwargs)

    run(2_000)
    counts = [sys.getrefcount(value) for value in values]
    uses = [value._use_count() for value in values if isinstance(value, Tensor)]
    before = resident()
    run(10_000)
    assert [sys.getrefcount(value) for value in values] == counts
    assert [value._use_count() for value in values if isinstance(value, Tensor)] == uses
    # Sixteen bytes a call would be 160 kB; the allocator's own blocks are larger than that.
    assert resident() - before < 1_000_000


def refused(*args: Any) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        aten.cat.default(*args)


def test_tensors_given_are_not_kept_alive() -> None:
    dutyfree.accelerate("aten")
    for make in (
        lambda x: aten.cat.default([x, x]),
        lambda x: aten.cat.default(tensors=(x, x)),
        lambda x: aten.add.Tensor(x, x),
        lambda x: aten.index.Tensor(x, [torch.tensor([0])]),
        lambda x: aten._foreach_add.List([x], [x]),
        lambda x: refused([x, t(2, 2)]),
        lambda x: refused([x, None]),
        lambda x: refused([x], 7.5),
        lambda x: refused([x], 7),
    ):
        x = t(2)
        storage = x.untyped_storage()
        owners = storage._use_count() if hasattr(storage, "_use_count") else 0
        reference, implementation = weakref.ref(x), x._use_count()
        make(x)
        gc.collect()
        assert x._use_count() == implementation
        assert (storage._use_count() if hasattr(storage, "_use_count") else 0) == owners
        del x
        gc.collect()
        assert reference() is None


def test_a_list_that_a_kernel_kept_is_not_used_again() -> None:
    kept: list[Any] = []

    class Keeping(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kept.append(args[0])
            return func(*args, **(kwargs or {}))

    dutyfree.accelerate("aten")
    tensors = [t(1), t(2)]
    with Keeping():
        aten.cat.default(tensors)
    for _ in range(3):
        aten.cat.default([t(5)])
    assert [len(x) for x in kept[0]] == [1, 2]
    x = grad(2)
    y = aten.stack.default([x, x])
    aten.stack.default([t(2), t(2)])
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_list_that_changes_while_a_subclass_is_asked() -> None:
    class Changing(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tensors.clear()
            return "answered"

    dutyfree.accelerate("aten")
    tensors = [t(2), t(2).as_subclass(Changing), t(2)]
    assert aten.cat.default(tensors) == "answered"
    assert aten.cat.default([t(1)]).tolist() == [1.0]


def test_a_refused_call_converts_its_arguments_once() -> None:
    class Counting:
        conversions = 0

        def __index__(self) -> int:
            Counting.conversions += 1
            return 0

    def run() -> int:
        Counting.conversions = 0
        with pytest.raises(RuntimeError, match="Expected a value of type 'int'"):
            aten.select.int(t(2), Counting(), "text")
        return Counting.conversions

    expected = run()
    dutyfree.accelerate(aten.select.int)
    assert run() == expected
    compare(aten.dropout.default, lambda: call(t(2), torch.ones(1, requires_grad=True), "text"), "pytorch")
