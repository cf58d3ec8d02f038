"""torch.compile, export, make_fx and opcheck over accelerated operators with C++ kernels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import dutyfree
from accelerated import both, restored
from cpp_twins import twins
from dutyfree.check.outcome import Side

__all__ = ["restored"]  # a fixture for every test here

LIBRARY = "behaviour"
OPCHECKED = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def x() -> Tensor:
    return torch.arange(1.0, 5.0).reshape(2, 2)


def g() -> Tensor:
    return x().requires_grad_()


def targets_of(graph: torch.fx.Graph, side: Side) -> list[str]:
    return [side.text(node.target) for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("spelling", ["overload", "packet"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_compiled_graph_holds_the_overload(spelling: str, requires_grad: bool) -> None:
    def run(side: Side) -> Any:
        torch._dynamo.reset()
        graphs: list[list[str]] = []

        def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
            graphs.append(targets_of(module.graph, side))
            return torch._dynamo.backends.debugging.aot_eager(module, inputs)

        op = side.spelled(spelling)
        compiled = torch.compile(lambda a, b: op(a, b, a=3.0) + 1, fullgraph=True, backend=backend)
        given = x().requires_grad_(requires_grad)
        result = compiled(given, x())
        if requires_grad:
            result.sum().backward()
        return graphs, result.tolist(), None if given.grad is None else given.grad.tolist()

    graphs, _, _ = both(twins(LIBRARY, "scaled"), run)
    (graph,) = graphs
    assert graph[0] == ("NAMESPACE.scaled.default" if spelling == "overload" else "NAMESPACE.scaled")


def test_aot_graphs_hold_the_overload() -> None:
    def run(side: Side) -> Any:
        torch._dynamo.reset()
        graphs: list[list[str]] = []

        def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
            graphs.append(targets_of(module.graph, side))
            return module.forward

        backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=compiler)
        result = torch.compile(side.packet, fullgraph=True, backend=backend)(x(), 3)
        return graphs, result.tolist()

    graphs, result = both(twins(LIBRARY, "cubed"), run)
    assert graphs == [["NAMESPACE.cubed.default"]]
    assert result == (x() ** 3 * 3).tolist()


def test_a_compiled_mutation() -> None:
    def run(side: Side) -> Any:
        torch._dynamo.reset()

        def twice(given: Tensor) -> Tensor:
            side.overload(given)
            return side.overload(given) * 2

        given = x()
        return torch.compile(twice, fullgraph=True, backend="aot_eager")(given).tolist(), given.tolist()

    # PyTorch has no functional form of an operator that returns what it writes to.
    both(twins(LIBRARY, "increment_"), run)


def test_a_compiled_call_without_a_fake_kernel() -> None:
    def run(side: Side) -> Any:
        torch._dynamo.reset()
        try:
            return torch.compile(side.overload, fullgraph=True, backend="aot_eager")(x(), x()).tolist()
        except Exception as error:
            return type(error).__name__

    assert both(twins(LIBRARY, "matched"), run) != (x() @ x()).tolist()


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("spelling", ["overload", "packet"])
def test_make_fx_records_the_overload(tracing_mode: str, spelling: str) -> None:
    def run(side: Side) -> Any:
        op = side.spelled(spelling)
        traced = make_fx(lambda a: op(a, n=2) + 1, tracing_mode=tracing_mode)(x())
        return targets_of(traced.graph, side), traced(x()).tolist()

    targets, values = both(twins(LIBRARY, "cubed"), run)
    assert "NAMESPACE.cubed.default" in targets
    assert values == (x() ** 3 * 2 + 1).tolist()


def test_export() -> None:
    def run(side: Side) -> Any:
        class Module(torch.nn.Module):
            def forward(self, given: Tensor) -> Any:
                return side.packet(given, 2)

        program = torch.export.export(Module(), (x(),))
        return targets_of(program.graph, side), program.module()(x()).tolist()

    assert both(twins(LIBRARY, "cubed"), run)[0] == ["NAMESPACE.cubed.default"]


CHECKED: list[tuple[str, str, Callable[[], tuple[Any, ...]], bool]] = [
    (LIBRARY, "scaled", lambda: (x(), x(), 0.5), True),
    (LIBRARY, "scaled", lambda: (g(), g()), True),
    (LIBRARY, "cubed", lambda: (x(), 2), True),
    (LIBRARY, "increment_", lambda: (x(),), False),
    (LIBRARY, "matched", lambda: (x(), x()), False),
    (LIBRARY, "sum_and_count", lambda: ([x()],), False),
    ("results", "add_", lambda: (x(),), False),
    ("results", "two", lambda: (x(),), False),
    ("results", "itself", lambda: (x(),), False),
    ("results", "through_pointer", lambda: (x(),), False),
]


@pytest.mark.parametrize(("library", "name", "make", "complete"), CHECKED)
def test_opcheck_finds_the_same(library: str, name: str, make: Callable[[], tuple[Any, ...]], complete: bool) -> None:
    def run(side: Side) -> Any:
        found = torch.library.opcheck(side.overload, make(), test_utils=OPCHECKED, raise_exception=False)
        return {key: "SUCCESS" if result == "SUCCESS" else type(result).__name__ for key, result in found.items()}

    both_ = twins(library, name)
    found = both(both_, run)
    if complete:
        assert set(found.values()) == {"SUCCESS"}, found
    assert sum(dutyfree.stats()[both_.accelerated.qualname].calls.values()) > 0
