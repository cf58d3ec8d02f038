"""The thirteen checks by which the idea was first validated, by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.subgraph_rewriter import replace_pattern

from parity import SPELLINGS, Pair, call, check, pair_of


def gemm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    if scale_a.dtype is not torch.float32:
        raise TypeError(f"scale_a must be float32, got {scale_a.dtype}")
    return ((a * scale_a) @ (b * scale_b) * alpha).to(dtype)


def fake_gemm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1], dtype=dtype)


@pytest.fixture
def pair() -> Pair:
    torch._dynamo.reset()
    pair = pair_of(gemm)
    pair.each(lambda op: op.register_fake(fake_gemm))
    return pair


def inputs(rows: int = 4) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(rows, 8), torch.randn(8, 3), torch.rand(1), torch.rand(1), 0.5, torch.float64]


def with_gemm(spelled: Any) -> Callable[..., Tensor]:
    def run(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
        return spelled(a, b, scale_a, scale_b, 0.5, torch.float64)  # type: ignore[no-any-return]

    return run


def test_numerics(pair: Pair) -> None:
    outcome = check(pair, lambda: call(*inputs()))
    assert outcome.value["values"] == repr(gemm(*inputs()).tolist())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_torch_compile_fullgraph(pair: Pair, spelling: str) -> None:
    compiled = torch.compile(with_gemm(pair.fast.spelled(spelling)), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*inputs()[:4]), gemm(*inputs()))


def test_torch_compile_dynamic(pair: Pair) -> None:
    frames: list[Any] = []

    def counting(graph: Any, example: Any) -> Any:
        frames.append(graph)
        return graph.forward

    compiled = torch.compile(with_gemm(pair.fast.op), backend=counting, fullgraph=True, dynamic=True)
    for rows in (4, 5, 9):
        assert torch.equal(compiled(*inputs(rows)[:4]), gemm(*inputs(rows)))
    assert len(frames) == 1


def test_fake_tensor_and_meta(pair: Pair) -> None:
    with FakeTensorMode():
        result = pair.fast.op(*inputs())
        assert type(result).__name__ == "FakeTensor"
        assert (tuple(result.shape), result.dtype) == ((4, 3), torch.float64)

    def on_meta() -> Any:
        return call(*(value.to("meta") if isinstance(value, Tensor) else value for value in inputs()))

    outcome = check(pair, on_meta, reason="kernel")
    assert (outcome.value["shape"], outcome.value["device"]) == ((4, 3), torch.device("meta"))
    assert not pair.fast.received


def test_inference_mode(pair: Pair) -> None:
    with torch.inference_mode():
        outcome = check(pair, lambda: call(*inputs()))
    assert outcome.value["inference"] is True


def test_no_grad(pair: Pair) -> None:
    def with_grad_input() -> Any:
        a, *rest = inputs()
        return call(a.requires_grad_(), *rest)

    with torch.no_grad():
        outcome = check(pair, with_grad_input)
    assert outcome.value["requires grad"] is False


def test_arguments_not_mutated(pair: Pair) -> None:
    for spelling in SPELLINGS:
        given = inputs()
        pair.fast.spelled(spelling)(*given)
        for value, fresh in zip(given, inputs(), strict=True):
            if isinstance(value, Tensor):
                assert torch.equal(value, fresh)
                assert value._version == fresh._version
            else:
                assert value == fresh


def test_output_not_aliased(pair: Pair) -> None:
    given = inputs()
    storages = {value.untyped_storage().data_ptr() for value in given if isinstance(value, Tensor)}
    results = [pair.fast.spelled(spelling)(*given) for spelling in SPELLINGS]
    pointers = {result.untyped_storage().data_ptr() for result in results}
    assert len(pointers) == 3
    assert not pointers & storages


def test_wrong_dtype(pair: Pair) -> None:
    def integer_scale() -> Any:
        a, b, _, *rest = inputs()
        return call(a, b, torch.ones(1, dtype=torch.int32), *rest)

    def text_for_dtype() -> Any:
        return call(*inputs()[:5], "float64")

    assert check(pair, integer_scale).raised == ("TypeError", "scale_a must be float32, got torch.int32")
    refused = check(pair, text_for_dtype, reason="argument-type")
    assert refused.raised is not None
    assert refused.raised[0] == "RuntimeError"


def test_wrong_device() -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    pair = pair_of(body, device_types="cuda")
    outcome = check(pair, lambda: call(torch.ones(2, 2), torch.ones(2, 2)), reason="kernel")
    assert outcome.raised is not None
    assert outcome.raised[0] == "NotImplementedError"


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_cpu_only_and_cuda_only_dispatch_fail_identically(device_type: str) -> None:
    def body(a: Tensor) -> Tensor:
        return a.clone()

    pair = pair_of(body, device_types=device_type)
    for device in ["cpu", "meta", *(["cuda"] if torch.cuda.is_available() else [])]:
        served = device == device_type
        reason = "" if served else "kernel"
        outcome = check(pair, lambda d=device: call(torch.ones(2, device=d)), reason=reason)  # type: ignore[misc]
        assert (outcome.raised is None) is served


def test_requires_grad_raises_identically(pair: Pair) -> None:
    texts = []
    for side in pair.sides():
        a, *rest = inputs()
        for spelling in SPELLINGS:
            result = side.spelled(spelling)(a.requires_grad_(), *rest)
            with pytest.raises(RuntimeError, match="register_autograd") as raised:
                result.sum().backward()
            texts.append(side.text(raised.value))
    assert len(set(texts)) == 1


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_graph_pattern_on_default_still_matches(pair: Pair, spelling: str) -> None:
    graph = make_fx(with_gemm(pair.fast.spelled(spelling)))(*inputs()[:4])
    pattern = symbolic_trace(with_gemm(pair.fast.overload))
    matches = replace_pattern(graph, pattern, lambda a, b, scale_a, scale_b: a @ b)
    assert len(matches) == 1
    assert torch.equal(graph(*inputs()[:4]), inputs()[0] @ inputs()[1])
