"""Accelerated operators of torch.library.custom_op: modes, tracing, transforms, subclasses; those of triton_op."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from accelerated import (
    AUTOGRAD,
    DIRECT,
    Formula,
    Seeing,
    SeeingFunctions,
    Twins,
    both,
    check,
    custom_twins,
    doubled,
    gives,
    ones,
    ones_with_grad,
    product,
    refused,
    registered_twice,
    restored,
    spellings_of,
    took,
)
from dutyfree.check.outcome import Side, call

__all__ = ["product", "restored"]  # fixtures, the last for every test here


# Modes, tracing, transforms


@pytest.mark.parametrize("mode", [Seeing, SeeingFunctions])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_modes_see_the_operator(mode: type[Any], requires_grad: bool) -> None:
    twins = custom_twins(doubled)

    def under(side: Side) -> Any:
        results = []
        with mode() as active:
            for spelling in spellings_of(side):
                y = side.spelled(spelling)(torch.ones(2, requires_grad=requires_grad))
                results.append((y.tolist(), y.requires_grad))
        return results, side.text(active.seen)

    results, seen = both(twins, under)
    assert results == [([2.0, 2.0], requires_grad)] * 3
    assert seen.count("NAMESPACE.op") == 3


def test_a_rule_for_a_mode_and_a_default_device() -> None:
    twins = custom_twins(doubled)
    twins.each(
        lambda side: side.op.register_torch_dispatch(Seeing, lambda mode, func, types, args, kwargs: torch.zeros(1))
    )

    def under(side: Side) -> Any:
        with Seeing():
            return side.op(torch.ones(2)).tolist()

    assert both(twins, under) == [0.0]
    with torch.device("cpu"):
        check(twins, ones, ("pytorch", "torch-function-mode"))


def test_fake_and_meta_tensors() -> None:
    twins = custom_twins(doubled, record=False)

    def faked(side: Side) -> Any:
        with FakeTensorMode() as mode:
            inside = side.op(mode.from_tensor(torch.ones(2)))
        outside = side.overload(mode.from_tensor(torch.ones(2)))
        meta = side.packet(torch.ones(2, device="meta"))
        return [(type(result).__name__, tuple(result.shape)) for result in (inside, outside, meta)]

    assert isinstance(both(twins, faked)[1], str)
    both(twins, lambda side: side.op(torch.ones(2, device="meta")))
    twins.each(lambda side: side.op.register_fake(lambda x: x.new_empty(5)))
    assert both(twins, faked) == [("FakeTensor", (5,))] * 2 + [("Tensor", (5,))]


@pytest.mark.parametrize("spelling", ["object", "packet", "overload"])
def test_compiled_without_a_graph_break(product: tuple[Twins, Formula], spelling: str) -> None:
    twins, _ = product
    twins.each(lambda side: side.op.register_fake(lambda x, y, n=2: torch.empty_like(x)))

    def compiled(side: Side) -> Any:
        op, graphs = side.spelled(spelling), []

        def backend(module: Any, inputs: Any) -> Any:
            graphs.append(side.text(module.code))
            return module

        torch._dynamo.reset()
        function = torch.compile(lambda x: op(x + 1, x) + 1, fullgraph=True, backend=backend)
        values = function(torch.ones(2)).tolist()
        torch._dynamo.reset()
        function = torch.compile(lambda x: op(x + 1, x) + 1, fullgraph=True, backend="aot_eager")
        x = torch.ones(2, requires_grad=True)
        function(x).sum().backward()
        assert x.grad is not None
        return values, graphs, x.grad.tolist()

    values, graphs, gradient = both(twins, compiled)
    assert values == [5.0, 5.0]
    assert gradient == [6.0, 6.0]
    assert len(graphs) == 1
    assert "torch.ops.NAMESPACE.op" in graphs[0]


def test_a_mutating_operator_compiled_and_exported() -> None:
    def add(x: Tensor, ys: list[Tensor]) -> None:
        x.add_(1)
        ys[0].add_(2)

    twins = custom_twins(add, mutates_args=("x", "ys"), record=False)

    def function(side: Side) -> Callable[..., Any]:
        def called(x: Tensor, y: Tensor) -> Tensor:
            side.op(x, [y])
            return x + y

        return called

    def compiled(side: Side) -> Any:
        torch._dynamo.reset()
        x, y = torch.ones(2), torch.ones(2)
        result = torch.compile(function(side), fullgraph=True, backend="aot_eager")(x, y)
        return result.tolist(), x.tolist(), y.tolist()

    assert both(twins, compiled) == ([5.0, 5.0], [2.0, 2.0], [3.0, 3.0])

    class Module(torch.nn.Module):
        def __init__(self, side: Side) -> None:
            super().__init__()
            self.called = function(side)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.called(x, y)  # type: ignore[no-any-return]

    both(
        twins,
        lambda side: side.text(torch.export.export(Module(side), (torch.ones(2), torch.ones(2))).graph_module.code),
    )


def test_make_fx_and_jit_trace_give_the_same_graph() -> None:
    twins = custom_twins(doubled, record=False)
    twins.each(lambda side: side.op.register_fake(lambda x: torch.empty_like(x)))
    for tracing in ("real", "fake", "symbolic"):

        def traced(side: Side, tracing: str = tracing) -> Any:
            function = lambda x: side.op(x) + side.packet(x) + side.overload(x)  # noqa: E731
            return side.text(make_fx(function, tracing_mode=tracing)(torch.ones(2)).code)

        assert both(twins, traced).count("torch.ops.NAMESPACE.op.default") == 3
    both(twins, lambda side: side.text(torch.jit.trace(lambda x: side.op(x), torch.ones(2)).graph))
    both(twins, lambda side: side.text(torch.fx.symbolic_trace(lambda x: side.packet(x)).code))


def test_opcheck(product: tuple[Twins, Formula]) -> None:
    twins, _ = product
    twins.each(lambda side: side.op.register_fake(lambda x, y, n=2: torch.empty_like(x)))
    for spelling in ("object", "packet", "overload"):
        for requires_grad in (False, True):

            def checked(side: Side, spelling: str = spelling, requires_grad: bool = requires_grad) -> Any:
                inputs = (torch.rand(2, requires_grad=requires_grad), torch.rand(2))
                return torch.library.opcheck(side.spelled(spelling), inputs)

            assert set(both(twins, checked).values()) == {"SUCCESS"}


def test_opcheck_finds_an_operator_that_mutates_secretly() -> None:
    def secretly(x: Tensor) -> Tensor:
        x.add_(1)
        return x.clone()

    twins = custom_twins(secretly, record=False)
    error, _ = both(twins, lambda side: torch.library.opcheck(side.op, (torch.rand(2),), test_utils="test_schema"))
    assert error == "OpCheckError"


def test_vmap_with_and_without_a_rule() -> None:
    def summed(x: Tensor) -> Tensor:
        return x.sum()

    twins = custom_twins(summed, record=False)
    for spelling in ("object", "packet", "overload"):
        both(twins, lambda side, s=spelling: torch.vmap(side.spelled(s))(torch.ones(4, 2)).tolist())
    twins.each(lambda side: side.op.register_vmap(lambda info, dims, x: (torch.zeros(4), 0)))
    for spelling in ("object", "packet", "overload"):
        rule = both(twins, lambda side, s=spelling: torch.vmap(side.spelled(s))(torch.ones(4, 2)).tolist())
        assert rule == [0.0] * 4
    check(twins, ones)


def test_autocast_with_and_without_a_rule() -> None:
    twins = custom_twins(doubled)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert check(twins, ones, DIRECT).received[0]["arguments"]["args"][0]["dtype"] is torch.float32
        twins.each(lambda side: side.op.register_autocast("cpu", torch.bfloat16))
        assert check(twins, ones, None).received[0]["arguments"]["args"][0]["dtype"] is torch.bfloat16
    assert check(twins, ones, None).received[0]["arguments"]["args"][0]["dtype"] is torch.float32


class Bare(Tensor):
    pass


class Wrapper(Tensor):
    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapper":
        return Tensor._make_wrapper_subclass(cls, inner.shape)  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.full((1,), 7.0)


def test_tensor_subclasses_and_tensors_with_keys_of_their_own() -> None:
    def cloned(x: Tensor) -> Tensor:
        return x.clone()

    twins = custom_twins(cloned)
    for made in (
        lambda: torch.ones(2).as_subclass(Bare),
        lambda: torch.nn.Parameter(torch.ones(2)),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(2).to_sparse(),
        lambda: torch.nested.nested_tensor([torch.ones(2)]),
        lambda: torch._efficientzerotensor(2),
        lambda: torch.ones(2, device="meta"),
        lambda: Wrapper(torch.ones(2)),
    ):
        check(twins, lambda made=made: call(made()), None)


# triton_op


def triton_twins(body: Callable[..., Any]) -> Twins:
    return registered_twice(lambda namespace: torch.library.triton_op(f"{namespace}::op", body, mutates_args=()))


def test_a_triton_op_is_direct_too() -> None:
    def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
        return x * factor

    twins = triton_twins(scaled)
    gives(twins, [2.0, 2.0])
    check(twins, lambda: call(torch.ones(2), factor=3))
    check(twins, ones_with_grad, AUTOGRAD)
    refused(check(triton_twins(returns_its_input), ones))
    twins.each(lambda side: side.op.register_autograd(lambda ctx, gradient: (gradient * 5, None)))

    def gradient(side: Side) -> Any:
        x = torch.ones(2, requires_grad=True)
        side.op(x).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    with took(twins.accelerated, AUTOGRAD):
        assert both(twins, gradient) == [5.0, 5.0]


def returns_its_input(x: Tensor) -> Tensor:
    return x


def test_a_triton_op_is_traced_through_where_pytorch_traces_through_it() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * 2

    twins = triton_twins(scaled)

    def compiled(side: Side) -> Any:
        graphs: list[str] = []

        def backend(module: Any, inputs: Any) -> Any:
            graphs.append(side.text(module.code))
            return module

        torch._dynamo.reset()
        for compiler in (backend, aot_autograd(fw_compiler=backend)):
            function = torch.compile(lambda x: side.op(x) + 1, fullgraph=True, backend=compiler)
            assert function(torch.ones(2)).tolist() == [3.0, 3.0]
        return graphs

    first, second = both(twins, compiled)
    assert "torch.ops.NAMESPACE.op" in first
    assert "torch.ops.aten.mul" in second
    assert "NAMESPACE" not in second

    def traced(side: Side) -> Any:
        return [
            side.text(make_fx(side.op, tracing_mode=mode)(torch.ones(2)).code) for mode in ("real", "fake", "symbolic")
        ]

    both(twins, traced)

    def faked(side: Side) -> Any:
        with FakeTensorMode() as mode:
            result = side.op(mode.from_tensor(torch.ones(2)))
        return type(result).__name__, tuple(result.shape)

    assert both(twins, faked) == ("FakeTensor", (2,))
