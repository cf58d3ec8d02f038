"""accelerate's boxed path: what operators with C++ kernels do is what they do without it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import dutyfree
from accelerated import restored
from boxed_alike import (
    aten,
    calls_of,
    compare,
    generator,
    grad,
    inference,
    numbered,
    operator,
    outcome,
    t,
    view,
)
from dutyfree.check.outcome import Arguments, call

__all__ = ["restored"]  # a fixture for every test here

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
