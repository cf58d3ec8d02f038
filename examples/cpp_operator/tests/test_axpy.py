"""What a package with an operator should test: values, gradients, registrations, compiled code, and the path."""

import axpy_ops
import pytest
import torch

import dutyfree


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def y() -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_values(x: torch.Tensor, y: torch.Tensor) -> None:
    torch.testing.assert_close(axpy_ops.axpy(x, y, 2.0), 2 * x + y)
    torch.testing.assert_close(axpy_ops.axpy(x, y), x + y)
    torch.testing.assert_close(axpy_ops.axpy(x.t(), y.t(), a=2.0), (2 * x + y).t())


def test_arguments_that_do_not_fit_raise(x: torch.Tensor, y: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"x has the shape \[3, 4\], y has \[2\]"):
        axpy_ops.axpy(x, torch.ones(2, dtype=torch.float64))
    with pytest.raises(TypeError, match="x is Double, y is Float"):
        axpy_ops.axpy(x, y.float())


def test_gradients(x: torch.Tensor, y: torch.Tensor) -> None:
    x.requires_grad_()
    y.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: axpy_ops.axpy(x, y, 3.0), (x, y))
    assert torch.autograd.gradgradcheck(lambda x, y: axpy_ops.axpy(x, y, 3.0), (x, y))


def test_opcheck(x: torch.Tensor, y: torch.Tensor) -> None:
    operator = torch.ops.axpy_ops.axpy.default
    torch.library.opcheck(operator, (x, y, 2.0))
    torch.library.opcheck(operator, (x.requires_grad_(), y.requires_grad_(), 2.0))


@pytest.mark.parametrize("gradient", [False, True])
def test_compiled_code_calls_the_operator(x: torch.Tensor, y: torch.Tensor, gradient: bool) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(lambda x, y: axpy_ops.axpy(x, y, 2.0) * 2, backend=backend, fullgraph=True)
    x.requires_grad_(gradient)
    result = compiled(x, y)
    torch.testing.assert_close(result, 2 * (2 * x + y))
    assert torch.ops.axpy_ops.axpy.default in [node.target for node in graphs[0].graph.nodes]
    if gradient:
        result.sum().backward()
        torch.testing.assert_close(x.grad, torch.full_like(x, 4.0))


def test_calls_are_direct(x: torch.Tensor, y: torch.Tensor) -> None:
    assert dutyfree.explain(axpy_ops.axpy, x, y, 2.0).path == "direct"
