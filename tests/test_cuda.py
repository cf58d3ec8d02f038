"""CUDA tensors: the same paths and outcomes as on the CPU, and nothing that waits for the device."""

from typing import Any

import pytest
import torch
from torch import Tensor

from parity import Pair, call, check, pair_of

pytestmark = pytest.mark.cuda


def scaled(x: Tensor, y: Tensor | None = None, factor: float = 2.0) -> Tensor:
    return x * factor if y is None else x * y.to(x.device) * factor


def zeroed(x: Tensor, tensors: list[Tensor]) -> None:
    x.zero_()


def on_cuda(*shape: int) -> Tensor:
    return torch.ones(shape or (2,), device="cuda")


def numbered() -> Pair:
    """Each kernel returns another number."""

    def default(x: Tensor, y: Tensor) -> Tensor:
        return torch.zeros(1)

    pair = pair_of(default)
    pair.each(lambda op: op.register_kernel("cuda", lambda x, y: torch.ones(1)))
    pair.each(lambda op: op.register_kernel("cpu", lambda x, y: torch.ones(1) * 2))
    return pair


def test_cuda_tensors_take_the_direct_path() -> None:
    outcome = check(pair_of(scaled), lambda: call(on_cuda(2, 3).t(), factor=3.0))
    assert outcome.value["device"].type == "cuda"


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_grad_modes_act_as_on_the_cpu(context: Any) -> None:
    with context():
        check(pair_of(scaled), lambda: call(on_cuda().requires_grad_()))


def test_a_gradient_is_recorded() -> None:
    outcome = check(pair_of(scaled), lambda: call(on_cuda().requires_grad_()), reason="requires-grad")
    assert outcome.value["requires grad"] is True


def test_mutated_tensors_are_bumped() -> None:
    pair = pair_of(zeroed, mutates_args={"x", "tensors"})
    outcome = check(pair, lambda: call(on_cuda(), [on_cuda(), torch.ones(1)]))
    assert outcome.inputs_after["args"][0]["version"] == 2


def test_tensors_of_both_devices_run_the_kernel_that_pytorch_picks() -> None:
    pair = numbered()
    assert check(pair, lambda: call(on_cuda(), torch.ones(1))).value["values"] == "[1.0]"
    assert check(pair, lambda: call(torch.tensor(1.0), on_cuda())).value["values"] == "[1.0]"
    assert check(pair, lambda: call(torch.ones(1), torch.ones(1))).value["values"] == "[2.0]"


def test_a_disabled_cuda_kernel_gives_way_to_the_default_one() -> None:
    pair = numbered()
    with pair.reference.op.set_kernel_enabled("cuda", False), pair.fast.op.set_kernel_enabled("cuda", False):
        assert check(pair, lambda: call(on_cuda(), on_cuda())).value["values"] == "[0.0]"
    assert check(pair, lambda: call(on_cuda(), on_cuda())).value["values"] == "[1.0]"


@pytest.mark.parametrize(("device_types", "served"), [("cuda", True), ("cpu", False), (["cpu", "cuda"], True)])
def test_an_operator_of_some_devices_serves_or_refuses_cuda_tensors_as_in_pytorch(
    device_types: Any, served: bool
) -> None:
    pair = pair_of(scaled, device_types=device_types)
    outcome = check(pair, lambda: call(on_cuda()), reason="" if served else "kernel")
    assert (outcome.raised is None) is served


def test_an_autocast_rule_casts_cuda_tensors() -> None:
    pair = pair_of(scaled)
    pair.each(lambda op: op.register_autocast("cuda", torch.float16))
    with torch.autocast("cuda", dtype=torch.float16):
        outcome = check(pair, lambda: call(on_cuda()), reason="kernel")
    assert outcome.value["dtype"] is torch.float16


def test_an_output_that_aliases_a_cuda_input_is_refused() -> None:
    def aliasing(x: Tensor) -> Tensor:
        return x.view(-1)

    outcome = check(pair_of(aliasing), lambda: call(on_cuda()))
    assert outcome.raised is not None


def test_a_factory_picks_the_cuda_kernel() -> None:
    def filled(size: int, device: torch.device) -> Tensor:
        return torch.ones(size, device=device)

    pair = pair_of(filled, device_types=["cuda", "cpu"])
    outcome = check(pair, lambda: call(2, torch.device("cuda")), reason="kernel")
    assert outcome.value["device"].type == "cuda"


def test_a_call_records_into_a_cuda_graph() -> None:
    op = pair_of(scaled).fast.op
    x = on_cuda(4)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        op(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = op(x, factor=3.0)
    x.fill_(5.0)
    graph.replay()
    torch.cuda.synchronize()
    assert result.tolist() == [15.0] * 4
