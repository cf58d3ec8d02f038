"""Dynamo, export, make_fx and FX passes see ``ns.op.default``, however the operator is called."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from parity import SPELLINGS, Pair, Side, call, check, pair_of, took


def scaled(x: Tensor, scale: float = 2.0, mode: str = "mean") -> Tensor:
    return x * scale


def split(x: Tensor, sizes: list[int]) -> list[Tensor]:
    return [part.clone() for part in x.split(sizes)]


def gemm(a: Tensor, b: Tensor, sa: Tensor, sb: Tensor, alpha: Tensor, dtype: torch.dtype) -> Tensor:
    return (a @ b * alpha).to(dtype)


def zeroed(x: Tensor) -> None:
    x.zero_()


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def scaled_pair() -> Pair:
    pair = pair_of(scaled)
    pair.each(lambda op: op.register_fake(lambda x, scale=2.0, mode="mean": torch.empty_like(x)))
    return pair


def graph_of(side: Side, graph: torch.fx.Graph) -> list[str]:
    """The calls of a graph, one text each."""
    return [
        side.text(f"{node.op} {node.target} {node.args} {node.kwargs}")
        for node in graph.nodes
        if node.op not in ("placeholder", "output")
    ]


def targets_of(graph: torch.fx.Graph) -> list[Any]:
    return [node.target for node in graph.nodes if node.op == "call_function"]


def calling(spelled: Any, *rest: Any) -> Callable[[Tensor], Any]:
    return lambda x: spelled(x, *rest)


def captured(function: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> list[GraphModule]:
    """The graphs that Dynamo captures, without allowing a break."""
    graphs: list[GraphModule] = []

    def backend(graph: GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)(*args)
    return graphs


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_dynamo_captures_the_overload_without_a_graph_break(spelling: str) -> None:
    texts = []
    for side in scaled_pair().sides():
        spelled = side.spelled(spelling)
        graphs = captured(lambda x, s=spelled: s(x.sin(), mode="sum").cos(), torch.ones(2))
        assert len(graphs) == 1
        texts.append(graph_of(side, graphs[0].graph))
        assert side.overload in targets_of(graphs[0].graph) or side.packet in targets_of(graphs[0].graph)
    assert texts[0] == texts[1]


def test_dynamo_does_not_materialise_defaults() -> None:
    side = scaled_pair().fast
    graph = captured(lambda x: side.op(x), torch.ones(2))[0].graph
    node = next(node for node in graph.nodes if node.target is side.overload)
    assert len(node.args) == 1
    assert node.kwargs == {}


def test_dynamo_with_dynamic_shapes_compiles_once() -> None:
    side = scaled_pair().fast
    graphs: list[GraphModule] = []

    def backend(graph: GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: side.op(x) + 1, backend=backend, fullgraph=True, dynamic=True)
    for size in (3, 4, 5):
        assert compiled(torch.ones(size)).tolist() == [3.0] * size
    assert len(graphs) == 1


def test_symbolic_ints_are_passed_to_the_operator() -> None:
    pair = pair_of(resized)
    pair.each(lambda op: op.register_fake(lambda x, size: x.new_empty(size)))
    texts = []
    for side in pair.sides():
        graphs = captured(lambda x, s=side: s.op(x, x.shape[0] * 2), torch.ones(5), dynamic=True)
        texts.append(graph_of(side, graphs[0].graph))
    assert texts[0] == texts[1]


def resized(x: Tensor, size: int) -> Tensor:
    return x.new_ones(size)


def test_aot_autograd_sees_the_operator_and_its_gradient_formula() -> None:
    pair = scaled_pair()
    pair.each(lambda op: op.register_autograd(lambda ctx, grad: grad * 2))
    for side in pair.sides():
        x = torch.ones(2, requires_grad=True)
        compiled = torch.compile(lambda x, s=side: s.op(x).sum(), backend="aot_eager", fullgraph=True)
        compiled(x).backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0, 2.0]


def test_a_body_that_runs_outside_of_a_graph_is_not_traced() -> None:
    counts = []
    for side in pair_of(scaled, record=False).sides():
        graphs: list[GraphModule] = []

        def backend(graph: GraphModule, inputs: Any, graphs: list[GraphModule] = graphs) -> Any:
            graphs.append(graph)
            return graph.forward

        # Dynamo skips this frame, but looks at the frames that it calls.
        @torch._dynamo.disable(recursive=False)
        def untraced(x: Tensor, side: Side = side) -> Tensor:
            return side.op(x) + side.packet(x) + side.overload(x)  # type: ignore[no-any-return]

        def run(x: Tensor, untraced: Any = untraced) -> Tensor:
            return untraced(x + 1) * 2  # type: ignore[no-any-return]

        assert torch.compile(run, backend=backend)(torch.ones(2)).tolist() == [24.0, 24.0]
        counts.append(len(graphs))
    assert counts[0] == counts[1]


def test_a_mutating_operator_is_functionalised_and_mutates() -> None:
    for side in pair_of(zeroed, mutates_args={"x"}).sides():

        def run(x: Tensor, side: Side = side) -> Tensor:
            y = x + 1
            side.op(y)
            side.op(x)
            return y + x

        x = torch.ones(2)
        assert torch.compile(run, backend="aot_eager", fullgraph=True)(x).tolist() == [0.0, 0.0]
        assert x.tolist() == [0.0, 0.0]


def test_a_list_result_gives_getitem_nodes() -> None:
    pair = pair_of(split)
    pair.each(lambda op: op.register_fake(lambda x, sizes: [x.new_empty(size) for size in sizes]))
    texts = []
    for side in pair.sides():
        graph = make_fx(summed_parts(side))(torch.ones(3))
        texts.append(graph_of(side, graph.graph))
    assert texts[0] == texts[1]
    assert targets_of(graph.graph).count(operator.getitem) == 2


def summed_parts(side: Side) -> Callable[[Tensor], Any]:
    return lambda x: sum(part.sum() for part in side.op(x, [1, 2]))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx_records_the_overload(spelling: str, tracing_mode: str) -> None:
    texts = []
    for side in scaled_pair().sides():
        graph = make_fx(calling(side.spelled(spelling), 3.0), tracing_mode=tracing_mode)(torch.ones(2))
        assert side.overload in targets_of(graph.graph)
        texts.append(graph_of(side, graph.graph))
    assert texts[0] == texts[1]


def test_make_fx_is_a_reason_to_leave_the_direct_path() -> None:
    pair = scaled_pair()
    with took(pair.fast, ("dispatch-mode", "thread-state", "torch-function-mode")):
        make_fx(lambda x: pair.fast.op(x))(torch.ones(2))
    check(pair, lambda: call(torch.ones(2)))


class Module(torch.nn.Module):
    def __init__(self, spelled: Any) -> None:
        super().__init__()
        self.spelled = spelled

    def forward(self, x: Tensor) -> Tensor:
        return self.spelled(x, 3.0).sin()  # type: ignore[no-any-return]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_export_keeps_the_operator_and_its_program_runs(spelling: str) -> None:
    texts = []
    for side in scaled_pair().sides():
        program = torch.export.export(Module(side.spelled(spelling)), (torch.ones(2),))
        assert side.overload in targets_of(program.graph)
        texts.append(graph_of(side, program.graph))
        assert torch.equal(program.module()(torch.ones(2)), torch.full((2,), 3.0).sin())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_symbolic_trace_records_what_pytorch_records(spelling: str) -> None:
    texts = []
    for side in scaled_pair().sides():
        traced = symbolic_trace(calling(side.spelled(spelling), 3.0))
        texts.append(graph_of(side, traced.graph))
        assert traced(torch.ones(2)).tolist() == [3.0, 3.0]
    assert texts[0] == texts[1]


def gemm_pair() -> Pair:
    pair = pair_of(gemm)
    pair.each(
        lambda op: op.register_fake(lambda a, b, sa, sb, alpha, dtype: a.new_empty(a.shape[0], b.shape[1], dtype=dtype))
    )
    return pair


def gemm_in_float64(spelled: Any) -> Callable[..., Any]:
    def run(a: Any, b: Any, sa: Any, sb: Any, alpha: Any) -> Any:
        return spelled(a, b, sa, sb, alpha, torch.float64)

    return run


def plain_product(a: Any, b: Any, sa: Any, sb: Any, alpha: Any) -> Any:
    return a @ b


def gemm_arguments() -> list[Tensor]:
    return [torch.ones(2, 3), torch.ones(3, 4), torch.ones(1), torch.ones(1), torch.tensor(2.0)]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_pattern_on_the_overload_with_six_positional_arguments_matches(spelling: str) -> None:
    from torch.fx.subgraph_rewriter import replace_pattern

    counts = []
    for side in gemm_pair().sides():
        graph = make_fx(gemm_in_float64(side.spelled(spelling)))(*gemm_arguments())
        pattern = symbolic_trace(gemm_in_float64(side.overload))
        counts.append(len(replace_pattern(graph, pattern, plain_product)))
        assert side.overload not in targets_of(graph.graph)
    assert counts == [1, 1]


def test_inductors_pattern_matcher_finds_the_overload() -> None:
    from torch._inductor.pattern_matcher import (
        Arg,
        CallFunction,
        KeywordArg,
        PatternMatcherPass,
        register_graph_pattern,
    )

    found = []
    for side in gemm_pair().sides():
        matcher = PatternMatcherPass()
        seen: list[Any] = []

        @register_graph_pattern(
            CallFunction(side.overload, *[Arg() for _ in range(5)], KeywordArg("dtype")), pass_dict=matcher
        )
        def _(match: Any, *args: Any, seen: list[Any] = seen, **kwargs: Any) -> None:
            seen.append((len(args), kwargs["dtype"]))

        graph = make_fx(gemm_in_float64(side.op))(*gemm_arguments())
        matcher.apply(graph.graph)
        found.append(seen)
    assert found[0] == found[1] == [(5, torch.float64)]


def test_fake_tensors_run_the_fake_and_not_the_body() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for side in scaled_pair().sides():
        side.received.clear()
        with FakeTensorMode() as mode:
            fake = mode.from_tensor(torch.ones(2, 3))
            for spelling in SPELLINGS:
                assert side.spelled(spelling)(fake).shape == (2, 3)
                assert type(side.spelled(spelling)(torch.ones(4))).__name__ == "FakeTensor"
        assert side.spelled("object")(fake).shape == (2, 3)
        assert not side.received
    pair = scaled_pair()
    fake = FakeTensorMode().from_tensor(torch.ones(2))
    with took(pair.fast, ("tensor-subclass", "dispatch-mode")):
        pair.fast.op(fake)


def test_a_data_dependent_fake_gives_an_unbacked_size() -> None:
    def nonzero(x: Tensor) -> Tensor:
        return x.nonzero()

    pair = pair_of(nonzero)

    def fake(x: Tensor) -> Tensor:
        return x.new_empty([torch.library.get_ctx().new_dynamic_size(), x.dim()], dtype=torch.int64)

    pair.each(lambda op: op.register_fake(fake))
    texts = []
    for side in pair.sides():
        graph = make_fx(calling(side.op), tracing_mode="symbolic")(torch.ones(3))
        texts.append(graph_of(side, graph.graph))
    assert texts[0] == texts[1]


def test_inductor_calls_the_operator_directly() -> None:
    side = scaled_pair().fast
    compiled = torch.compile(lambda x: side.op(x + 1) * 2, fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [8.0, 8.0]
    side.received.clear()
    with took(side):
        assert compiled(torch.ones(2)).tolist() == [8.0, 8.0]
    assert len(side.received) == 1
