"""torch.jit.script and torch.jit.trace find the operator by its name."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import SPELLINGS, Pair, Side, call, check, pair_of, took

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:`torch.jit")


def scaled(x: Tensor, count: int = 2) -> Tensor:
    return x * count


@pytest.fixture
def pair() -> Pair:
    return pair_of(scaled)


def scripted(spelled: Any) -> Any:
    def run(x: Tensor) -> Tensor:
        return spelled(x, 3)  # type: ignore[no-any-return]

    return torch.jit.script(run)


def graph_text(side: Side, graph: Any) -> str:
    """A TorchScript graph without its source locations."""
    return "\n".join(side.text(line.split(" #")[0].rstrip()) for line in str(graph).splitlines())


def test_a_script_that_calls_the_packet_names_the_operator(pair: Pair) -> None:
    graphs = []
    for side in pair.sides():
        run = scripted(side.packet)
        assert run(torch.ones(2)).tolist() == [3.0, 3.0]
        graphs.append(graph_text(side, run.graph))
    assert graphs[0] == graphs[1]
    assert "NAMESPACE::op(" in graphs[1]


def test_a_script_that_calls_the_object_names_the_operator_too(pair: Pair) -> None:
    """The reference compiles the object to a Python call, which can't be saved; see docs/differences.md."""
    reference, fast = (scripted(side.op) for side in pair.sides())
    assert "python_value" in str(reference.graph)
    assert reference(torch.ones(2)).tolist() == fast(torch.ones(2)).tolist() == [3.0, 3.0]
    assert "NAMESPACE::op(%x.1, %2)" in graph_text(pair.fast, fast.graph)
    saved = io.BytesIO()
    torch.jit.save(fast, saved)
    saved.seek(0)
    assert torch.jit.load(saved)(torch.ones(2)).tolist() == [3.0, 3.0]


def test_a_script_that_calls_the_overload_is_refused_as_in_pytorch(pair: Pair) -> None:
    kinds = []
    for side in pair.sides():
        with pytest.raises((RuntimeError, ValueError)) as raised:
            scripted(side.overload)
        kinds.append(raised.type)
    assert kinds[0] is kinds[1]


def test_a_script_compiled_from_text_finds_the_operator(pair: Pair) -> None:
    for side in pair.sides():
        source = f"def run(x):\n    return torch.ops.{side.namespace}.op(x, 3)\n"
        unit = torch.jit.CompilationUnit(source)
        assert unit.run(torch.ones(2)).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_trace_names_the_operator(pair: Pair, spelling: str) -> None:
    graphs = []
    for side in pair.sides():
        spelled = side.spelled(spelling)
        traced = torch.jit.trace(lambda x, s=spelled: s(x, 3), (torch.ones(2),))
        assert traced(torch.ones(3)).tolist() == [3.0] * 3
        graphs.append(graph_text(side, traced.graph))
    assert graphs[0] == graphs[1]
    assert "NAMESPACE::op(" in graphs[1]


def test_tracing_is_a_reason_to_leave_the_direct_path(pair: Pair) -> None:
    with took(pair.fast, "thread-state"):
        torch.jit.trace(lambda x: pair.fast.op(x), (torch.ones(2),), check_trace=False)
    check(pair, lambda: call(torch.ones(2)))


def test_a_saved_script_loads_and_runs(pair: Pair) -> None:
    buffer = io.BytesIO()
    torch.jit.save(scripted(pair.fast.packet), buffer)
    buffer.seek(0)
    assert torch.jit.load(buffer)(torch.ones(2)).tolist() == [3.0, 3.0]


def test_frozen_modules_keep_the_operator(pair: Pair) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return packet(x, 3)  # type: ignore[no-any-return]

    packet = pair.fast.packet
    frozen = torch.jit.freeze(torch.jit.script(Module().eval()))
    assert "::op(" in str(frozen.graph)
    assert frozen(torch.ones(2)).tolist() == [3.0, 3.0]


def test_a_script_runs_a_kernel_registered_later(pair: Pair) -> None:
    for side in pair.sides():
        run = scripted(side.packet)
        run(torch.ones(2))
        side.op.register_kernel("cpu", lambda x, count=2: x - count)
        assert run(torch.ones(2)).tolist() == [-2.0, -2.0]
