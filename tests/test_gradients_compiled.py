"""Recorded calls in compiled functions, below compiled autograd, and traced or exported."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gradients_alike import (
    alike,
    done_alike,
    needing_grad,
    product,
    products,
    step,
    steps,
    with_exponential,
    with_product,
    with_products,
)
from parity import Pair, Side, pair_of


def compiled_alike(pair: Pair, function: Callable[..., Any], *shapes: int, **options: Any) -> Any:
    def run(side: Side) -> Any:
        torch._dynamo.reset()
        tensors = [needing_grad(size) for size in shapes]
        compiled = torch.compile(lambda *args: function(side.op, *args), backend="aot_eager", fullgraph=True, **options)
        result = compiled(*tensors)
        result.sum().backward()
        return result.detach(), [tensor.grad for tensor in tensors]

    return done_alike(pair, run)


def test_compiled_functions_differentiate_through_the_operator() -> None:
    compiled_alike(with_product(), lambda op, x, y: op(x, y, 3.0).sin() + op(x, x), 2, 2)
    compiled_alike(with_products(), lambda op, x, y: op(x, [y, x])[0] + op(x, [x])[0].sin(), 2, 2)


def test_an_eager_node_may_lie_behind_a_compiled_function() -> None:
    for pair in (with_product(), with_exponential(), with_products()):

        def run(side: Side, pair: Pair = pair) -> Any:
            torch._dynamo.reset()
            x = needing_grad()
            op = side.op
            if "others" in str(op._opoverload._schema):
                middle = op(x, [x, x])[1]
            else:
                middle = op(x, x) if "scale" in str(op._opoverload._schema) else op(x)
            torch.compile(torch.sin, backend="aot_eager")(middle).sum().backward()
            return x.grad

        alike(pair, run)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_autograd_takes_the_node_of_an_eager_call(fullgraph: bool) -> None:
    from torch._dynamo import compiled_autograd

    graphs: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module.print_readable(print_output=False))
        return module

    def run(side: Side, forward_and_backward: Callable[[Side], Any]) -> Any:
        torch._dynamo.reset()
        compiled_autograd.reset()
        graphs.clear()
        with compiled_autograd._enable(torch.compile(backend=backend, fullgraph=fullgraph)):
            found = [forward_and_backward(side) for _ in range(2)]
        return found, len(graphs), [target_lines(graph, side) for graph in graphs]

    def exponential_step(side: Side) -> Any:
        x = needing_grad()
        side.op(x).sum().backward()
        return x.grad

    alike(with_product(), lambda side: run(side, step))
    alike(with_exponential(), lambda side: run(side, exponential_step))
    alike(with_products(), lambda side: run(side, steps))

    def refused(side: Side, forward_and_backward: Callable[[Side], Any]) -> str:
        with pytest.raises(Exception, match="no autograd formula was registered") as error:
            run(side, forward_and_backward)
        return re.sub(r"eval_with_key>\.\d+", "", side.text(error.value))

    alike(pair_of(product), lambda side: refused(side, step))
    alike(pair_of(products), lambda side: refused(side, steps))


def target_lines(graph: str, side: Side) -> list[str]:
    """The operations of a printed graph, without the source lines that it names."""
    lines = (line.split("#")[0].strip() for line in graph.splitlines())
    return [side.text(line) for line in lines if " = " in line]


def test_compiled_autograd_inside_a_compiled_function_takes_the_node() -> None:
    def run(side: Side, forward_and_backward: Callable[[Side], Any]) -> Any:
        torch._dynamo.reset()
        with torch._dynamo.config.patch(compiled_autograd=True):

            @torch.compile(backend="aot_eager")
            def train(loss: Tensor) -> None:
                loss.backward()

            x, y = needing_grad(), needing_grad()
            train(forward_and_backward(side, x, y))  # type: ignore[call-arg]
            return x.grad, y.grad

    alike(with_product(), lambda side: run(side, lambda side, x, y: side.op(x, y).sum()))  # type: ignore[misc]
    alike(with_products(), lambda side: run(side, lambda side, x, y: side.op(x, [y])[0].sum()))  # type: ignore[misc]


def test_traced_functions_hold_the_operator() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def traced(side: Side) -> Any:
        def gradient(x: Tensor) -> Tensor:
            y = x.detach().requires_grad_()
            return torch.autograd.grad(side.op(y, y).sum(), y)[0]

        return str(make_fx(gradient)(torch.ones(2)).code)

    pair = with_product()
    assert "NAMESPACE.op.default" in str(done_alike(pair, traced))
    for side in pair.sides():
        found = torch.jit.trace(lambda x, op=side.op: op(x, x), (needing_grad(),), check_trace=False)
        assert side.qualname in str(found.graph)
        assert found(torch.ones(2)).tolist() == [2.0, 2.0]


def test_exported_functions_hold_the_operator() -> None:
    class Model(torch.nn.Module):
        def __init__(self, op: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.op = op

        def forward(self, x: Tensor) -> Tensor:
            return self.op(self.weight, x)  # type: ignore[no-any-return]

    def exported(side: Side) -> Any:
        program = torch.export.export(Model(side.op), (torch.ones(2),))
        return str(program.graph), program.module()(torch.ones(2))

    assert "NAMESPACE.op.default" in str(done_alike(with_product(), exported))
