"""Operators that others registered, before and after ``accelerate``: PyTorch's own, and two ways to register in Python.

What is "before" is the callable that PyTorch has in ``OpOverload._op``, without the Python frame of
``OpOverload.__call__`` around it: an accelerated operator must not be slower than even that.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from dutyfree import _core, accelerate
from dutyfree.bench.calls import CASES, Case
from dutyfree.bench.candidates import build, require_path
from dutyfree.bench.measure import Block, Call, timed_block

NAMESPACE = "dutyfree_bench_accelerated"
BEFORE, AFTER, FUNCTION = "before", "accelerated", "function"
# The calls of calls.CASES that are also made with accelerated operators.
PYTHON_CASES = [case for case in CASES if case.name in ("clone", "list_result", "gemm", "gemm_keyword", "args14")]

_libraries: list[torch.library.Library] = []


@functools.cache
def aten_calls() -> dict[str, tuple[Callable[..., Any] | None, Call]]:
    """Fifty common operators by overload: PyTorch's function for the same, where there is one, and arguments."""
    x, y = torch.randn(4), torch.randn(4)
    matrix, batch, mask = torch.randn(4, 4), torch.randn(2, 4, 4), torch.tensor([True, False, True, False])
    index, image, kernel = torch.tensor([0, 1]), torch.randn(1, 2, 6, 6), torch.randn(2, 2, 3, 3)

    def call(*args: Any, **kwargs: Any) -> Call:
        return Call(args, kwargs)

    return {
        "relu": (torch.relu, call(x)),
        "gelu": (torch._C._nn.gelu, call(x, approximate="tanh")),
        "silu": (torch._C._nn.silu, call(x)),
        "sigmoid": (torch.sigmoid, call(x)),
        "tanh": (torch.tanh, call(x)),
        "exp": (torch.exp, call(x)),
        "sqrt": (torch.sqrt, call(x)),
        "rsqrt": (torch.rsqrt, call(x)),
        "neg": (torch.neg, call(x)),
        "add.Tensor": (torch.add, call(x, y)),
        "sub.Tensor": (torch.sub, call(x, y, alpha=2)),
        "mul.Tensor": (torch.mul, call(x, y)),
        "mul.Scalar": (None, call(x, 2.0)),
        "div.Tensor": (torch.div, call(x, y)),
        "pow.Tensor_Scalar": (torch.pow, call(x, 2)),
        "clamp": (torch.clamp, call(x, -1, 1)),
        "where.self": (torch.where, call(mask, x, y)),
        "eq.Tensor": (torch.eq, call(x, y)),
        "lt.Scalar": (torch.lt, call(x, 0)),
        "masked_fill.Scalar": (torch.masked_fill, call(x, mask, 0.0)),
        "add_.Tensor": (torch.Tensor.add_, call(torch.zeros(4), x)),
        "mul_.Scalar": (torch.Tensor.mul_, call(torch.ones(4), 1.0)),
        "copy_": (torch.Tensor.copy_, call(torch.ones(4), x)),
        "zero_": (torch.zero_, call(torch.ones(4))),
        "clone": (torch.clone, call(x)),
        "detach": (torch.detach, call(x)),
        "_to_copy": (None, call(x, dtype=torch.float64)),
        "view": (torch.Tensor.view, call(x, [2, 2])),
        "transpose.int": (torch.transpose, call(matrix, 0, 1)),
        "permute": (torch.permute, call(batch, [2, 0, 1])),
        "unsqueeze": (torch.unsqueeze, call(x, 0)),
        "expand": (torch.Tensor.expand, call(x, [3, 4])),
        "slice.Tensor": (None, call(x, 0, 1, 3)),
        "select.int": (torch.select, call(matrix, 0, 1)),
        "cat": (torch.cat, call([x, y])),
        "stack": (torch.stack, call([x, y])),
        "split.Tensor": (None, call(x, 2)),
        "sum.dim_IntList": (torch.sum, call(matrix, [1], keepdim=True)),
        "mean.dim": (torch.mean, call(matrix, [1])),
        "max.dim": (torch.max, call(matrix, 1)),
        "argmax": (torch.argmax, call(x)),
        "_softmax": (torch._softmax, call(matrix, 1, False)),
        "native_layer_norm": (torch.native_layer_norm, call(matrix, [4], x, y, 1e-5)),
        "mm": (torch.mm, call(matrix, matrix)),
        "addmm": (torch.addmm, call(x, matrix, matrix)),
        "bmm": (torch.bmm, call(batch, batch)),
        "convolution": (torch.convolution, call(image, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
        "index_select": (torch.index_select, call(x, 0, index)),
        "embedding": (torch.embedding, call(matrix, index)),
        "zeros": (torch.zeros, call([4], dtype=torch.float32)),
    }


def aten_blocks(name: str) -> dict[tuple[str, str], Block]:
    """The candidates of one operator of PyTorch's own, by overload ("add.Tensor")."""
    function, call = aten_calls()[name]
    packet, _, overload_name = name.partition(".")
    overload = getattr(getattr(torch.ops.aten, packet), overload_name or "default")
    accelerate(overload)
    require_path("boxed", name, AFTER, overload, call)
    callable_: _core.OpCallable = overload._op
    candidates = {BEFORE: callable_.pytorch, AFTER: overload}
    if function is not None:
        candidates[FUNCTION] = function
    return {(f"aten::{name}", candidate): timed_block(called, call) for candidate, called in candidates.items()}


def python_blocks(case: Case) -> dict[tuple[str, str], Block]:
    """One kind of call of operators with Python bodies: before and after, beside the function and fast_custom_op."""
    call = case.make_call(torch.device("cpu"))
    candidates = {name: called for name, called in build(case).items() if name != "dutyfree.packet"}
    for name, called in _accelerated(case).items():
        require_path("direct", case.name, name, called, call)
        candidates[name] = called
    return {(case.name, name): timed_block(called, call) for name, called in candidates.items()}


@functools.cache
def _accelerated(case: Case) -> dict[str, Callable[..., Any]]:
    """Operators of ``custom_op`` and ``Library``, registered as anyone would, and accelerated."""
    custom_op = torch.library.custom_op(
        f"{NAMESPACE}::{case.name}_custom_op", case.make_function(), mutates_args=case.mutates_args
    )
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    _libraries.append(library)
    function = case.make_function()
    library.define(f"{case.name}_library" + torch.library.infer_schema(function, mutates_args=case.mutates_args))
    library.impl(f"{case.name}_library", function, "CompositeExplicitAutograd")
    accelerate(NAMESPACE)
    return {
        "accelerated.custom_op.object": custom_op,
        "accelerated.custom_op.overload": custom_op._opoverload,
        "accelerated.library.overload": getattr(getattr(torch.ops, NAMESPACE), f"{case.name}_library").default,
    }
