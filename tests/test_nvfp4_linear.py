"""``NVFP4Linear`` and ``quantize_linears``: linear layers whose weight is kept in NVFP4."""

import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import dutyfree.ops
import nvfp4_oracle as oracle
from dutyfree.ops import NVFP4Linear, quantize_linears

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Of the rounding of results to their dtype, twice the largest error; the sum itself is compared in test_nvfp4_gemm.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def linear(k: int = 64, n: int = 48, bias: bool = True, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(k, n, bias=bias, dtype=dtype)


def x(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def scale_of(tensor: Tensor) -> float:
    return float(dutyfree.ops.global_scale(tensor.detach()).item())


def quantized(tensor: Tensor, g: float) -> tuple[oracle.Bytes, oracle.Bytes]:
    """By the operator, which test_nvfp4_quantize compares with the oracle: near a tie either code is right."""
    values, scales = dutyfree.ops.tunable_fp4_quantize(tensor.detach(), torch.tensor([g]))
    return values.numpy(), scales.numpy().reshape(tensor.shape[0], -1)


def expected(of: nn.Linear, given: Tensor, input_scale: float | None = None) -> np.ndarray[Any, Any]:
    """What the layer gives with numpy: both sides quantized, multiplied in float64."""
    rows = given.detach().reshape(-1, of.in_features)
    g_act, g_weight = scale_of(given) if input_scale is None else input_scale, scale_of(of.weight)
    result, _ = oracle.gemm(*quantized(rows, g_act), *quantized(of.weight, g_weight), 1 / (g_act * g_weight))
    if of.bias is not None:
        result = result + of.bias.detach().double().numpy()
    return result.reshape(*given.shape[:-1], of.out_features)


def close(seen: Tensor, wanted: np.ndarray[Any, Any]) -> None:
    assert tuple(seen.shape) == wanted.shape
    largest = np.abs(wanted).max(initial=1e-3)
    np.testing.assert_allclose(seen.double().numpy(), wanted, rtol=0, atol=ROUNDING[seen.dtype] * largest)


# --- what a call gives


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 64), (64,), (2, 3, 64), (1, 1, 1, 64), (130, 64)], ids=str)
def test_a_call_is_the_product_of_both_sides_quantized(dtype: torch.dtype, bias: bool, shape: tuple[int, ...]) -> None:
    of, given = linear(bias=bias, dtype=dtype), x(*shape, dtype=dtype)
    result = NVFP4Linear.from_linear(of)(given)
    assert result.dtype == dtype
    close(result, expected(of, given))


def test_a_call_is_near_the_linear_layer() -> None:
    of, given = linear(256, 128), x(32, 256)
    wanted = of(given)
    error = (NVFP4Linear.from_linear(of)(given) - wanted).norm() / wanted.norm()
    assert 0.01 < error < 0.2  # two roundings of about 10 % each element, independent of each other


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64)], ids=str)
def test_no_rows(shape: tuple[int, ...]) -> None:
    assert NVFP4Linear.from_linear(linear())(x(*shape)).shape == (*shape[:-1], 48)


@pytest.mark.parametrize("static", [True, False])
def test_rows_of_zeros_give_the_bias(static: bool) -> None:
    of = linear()
    made = NVFP4Linear.from_linear(of, input_scale=100.0 if static else None)
    assert torch.equal(made(torch.zeros(3, 64)), of.bias.detach().expand(3, 48))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_shows(value: float) -> None:
    given = x(2, 64)
    given[0, 3] = value
    assert not NVFP4Linear.from_linear(linear())(given)[0].isfinite().any()


def test_strided_input() -> None:
    of, given = linear(), x(64, 5).t()
    close(NVFP4Linear.from_linear(of)(given), expected(of, given.contiguous()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_that_is_not_fused_is_added_to_the_rounded_product(dtype: torch.dtype) -> None:
    source, given = linear(dtype=dtype), x(5, 64, dtype=dtype)
    plain = nn.Linear(64, 48, bias=False, dtype=dtype)
    plain.weight = source.weight
    unfused = NVFP4Linear.from_linear(source, fuse_bias=False)
    assert torch.equal(unfused(given), NVFP4Linear.from_linear(plain)(given) + source.bias.detach())
    assert repr(unfused).endswith("fuse_bias=False)")
    model = nn.Sequential(source)
    quantize_linears(model, fuse_bias=False)
    assert torch.equal(model(given), unfused(given))


@pytest.mark.parametrize(("bias", "fuse_bias"), [(False, True), (False, False), (True, False)])
def test_without_a_fused_bias_the_product_has_six_arguments(
    bias: bool, fuse_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = NVFP4Linear.from_linear(linear(bias=bias), fuse_bias=fuse_bias)
    seen = []

    def gemm(*args: Any, **kwargs: Any) -> Tensor:
        seen.append((len(args), kwargs))
        return original(*args, **kwargs)

    original = dutyfree.ops.nvfp4_gemm
    monkeypatch.setattr(dutyfree.ops, "nvfp4_gemm", gemm)
    layer(x(3, 64))
    assert seen == [(6, {})]


def test_a_bias_of_another_dtype_than_the_activations() -> None:
    of, given = linear(dtype=torch.bfloat16), x(5, 64, dtype=torch.float16)
    close(NVFP4Linear.from_linear(of)(given), expected(of, given))


# --- the scale of activations


def test_a_static_input_scale() -> None:
    of, given = linear(), x(5, 64)
    made = NVFP4Linear.from_linear(of, input_scale=scale_of(given) / 2)
    close(made(given), expected(of, given, scale_of(given) / 2))
    close(made(given[:1]), expected(of, given[:1], scale_of(given) / 2))


@pytest.mark.parametrize("kind", [float, torch.tensor, lambda v: torch.tensor([v]), lambda v: torch.tensor([[v]])])
def test_forms_of_a_static_input_scale(kind: Callable[[float], Any]) -> None:
    made = NVFP4Linear.from_linear(linear(), input_scale=kind(3.0))
    assert made.input_scale is not None
    assert made.input_scale.tolist() == [3.0]
    assert made.input_scale.dtype == torch.float32


def test_the_measured_scale_is_that_of_the_call() -> None:
    of, given = linear(bias=False), x(5, 64)
    made = NVFP4Linear.from_linear(of)
    assert torch.equal(made(given * 1024), made(given) * 1024)


def test_set_input_scale_makes_a_layer_static_and_dynamic_again() -> None:
    of, given = linear(), x(5, 64)
    made = NVFP4Linear.from_linear(of)
    before = made(given)
    made.set_input_scale(7.0)
    close(made(given), expected(of, given, 7.0))
    made.set_input_scale(None)
    assert torch.equal(made(given), before)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), torch.ones(2)], ids=str)
def test_an_input_scale_that_is_none(scale: Any) -> None:
    with pytest.raises(ValueError, match=r"input_scale is .* one positive number"):
        NVFP4Linear.from_linear(linear(), input_scale=scale)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    ("of_weight", "of_x", "tolerance"),
    [(1e-20, 1e-17, 0.1), (1e-10, 1e-25, 1e-3), (1.0, 1e-36, 1e-2), (1e-30, 1e-3, 2e-5), (1e20, 1e15, 1e-5)],
    ids=str,
)
def test_scales_whose_product_leaves_float32(static: bool, of_weight: float, of_x: float, tolerance: float) -> None:
    of, given = linear(bias=False), x(5, 64) * of_x
    with torch.no_grad():
        of.weight.mul_(of_weight)
    made = NVFP4Linear.from_linear(of, input_scale=scale_of(given) if static else None)
    wanted = expected(of, given)
    assert (np.abs(made(given).double().numpy() - wanted).max() / np.abs(wanted).max()) < tolerance


@pytest.mark.parametrize(
    ("of_weight", "scale", "alpha"),
    [(1e-8, 2e38, "0"), (1.0, 1.4013e-45, "inf"), (1e-3, 1.4013e-45, "inf"), (1e20, 1e-25, "inf")],
)
def test_an_input_scale_with_which_nothing_can_be_computed(of_weight: float, scale: float, alpha: str) -> None:
    of = linear()
    with torch.no_grad():
        of.weight.mul_(of_weight)
    text = rf"input_scale is {re.escape(f'{scale:g}')} and weight_global_scale .* is {alpha} in float32"
    with pytest.raises(ValueError, match=text):
        NVFP4Linear.from_linear(of, input_scale=scale)
    with pytest.raises(ValueError, match=text):
        quantize_linears(nn.ModuleDict({"only": of}), input_scales={"only": scale})
    made = NVFP4Linear.from_linear(of, input_scale=3.0)
    before = made(x(5, 64))
    with pytest.raises(ValueError, match=text):
        made.set_input_scale(scale)
    assert made.input_scale is not None
    assert made.input_scale.tolist() == [3.0]
    assert torch.equal(made(x(5, 64)), before)


# --- the weight


def test_the_weight_is_quantized_as_the_oracle_does() -> None:
    of = linear(96, 130)
    made = NVFP4Linear.from_linear(of)
    g = scale_of(of.weight)
    _, scales = oracle.quantize(of.weight.detach().numpy(), g)
    assert made.weight_global_scale.tolist() == [g]
    assert made.weight.shape == (130, 48)
    assert not oracle.faults(of.weight.detach().numpy(), g, made.weight.numpy(), scales)
    assert (made.weight_scale.numpy() == oracle.swizzle(scales)).all()


def test_the_linear_layer_stays_as_it_was() -> None:
    of = linear()
    weight, bias = of.weight.detach().clone(), of.bias.detach().clone()
    made = NVFP4Linear.from_linear(of)
    assert made.bias is not None
    made.bias.zero_()
    assert torch.equal(of.weight, weight)
    assert torch.equal(of.bias, bias)
    assert of.weight.requires_grad


def test_a_weight_of_zeros() -> None:
    of = linear()
    nn.init.zeros_(of.weight)
    close(NVFP4Linear.from_linear(of)(x(3, 64)), of.bias.detach().double().expand(3, 48).numpy())


def test_a_new_layer_gives_its_bias() -> None:
    assert NVFP4Linear(64, 48)(x(3, 64)).abs().max() == 0
    assert NVFP4Linear(64, 48, bias=False).bias is None


@pytest.mark.parametrize(("k", "n"), [(16, 1), (48, 7), (80, 30), (64, 129)])
def test_sizes_that_need_padding(k: int, n: int) -> None:
    of, given = linear(k, n), x(3, k)
    made = NVFP4Linear.from_linear(of)
    assert made.weight_scale.numel() == oracle.swizzled_size(n, k // 16) == NVFP4Linear(k, n).weight_scale.numel()
    close(made(given), expected(of, given))


def test_no_parameters() -> None:
    made = NVFP4Linear.from_linear(linear())
    assert not list(made.parameters())
    assert {name for name, _ in made.named_buffers()} == {"weight", "weight_scale", "weight_global_scale", "bias"}


def test_repr() -> None:
    text = repr(NVFP4Linear.from_linear(linear(), input_scale=1.0))
    assert text == "NVFP4Linear(in_features=64, out_features=48, bias=True, input_scale=static)"
    assert "bias=False, input_scale=dynamic" in repr(NVFP4Linear(64, 48, bias=False))


def test_repr_follows_the_layer() -> None:
    made = NVFP4Linear(64, 48, static_input_scale=True, device="meta")
    assert repr(made).endswith("bias=True, input_scale=static)")
    made.set_input_scale(None)
    assert repr(made).endswith("bias=True, input_scale=dynamic)")
    made.bias = None
    assert repr(copy.deepcopy(made)) == "NVFP4Linear(in_features=64, out_features=48, bias=False, input_scale=dynamic)"


def test_repr_of_a_quantized_model() -> None:
    model = nn.Sequential(linear(), linear(40))
    replaced = quantize_linears(model)
    assert repr(replaced) == "['0']"
    assert str(replaced).splitlines() == [
        "1 linear layers quantized to NVFP4, 1 left as they are",
        "  1: in_features is 40, not a multiple of 16, the elements that share a scale",
    ]
    again = pickle.loads(pickle.dumps(replaced))
    assert (again, again.skipped, str(again)) == (replaced, replaced.skipped, str(replaced))
    assert repr(model).splitlines()[1] == f"  (0): {model[0]!r}"


# --- errors


@pytest.mark.parametrize("k", [0, 8, 30, -16])
def test_a_k_that_is_no_multiple_of_16(k: int) -> None:
    with pytest.raises(ValueError, match=f"in_features is {k}"):
        NVFP4Linear(k, 48)


def test_no_outputs() -> None:
    with pytest.raises(ValueError, match="out_features 0"):
        NVFP4Linear(16, 0)


class Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: linear(40), ValueError, "in_features is 40, not a multiple of 16"),
        (lambda: Scaled(64, 48), TypeError, r"no subclass.*Scaled"),
        (lambda: nn.Conv1d(16, 16, 1), TypeError, "this is a torch.nn.modules.conv.Conv1d"),
        (lambda: linear(dtype=torch.float64), TypeError, "its weight is torch.float64"),
        (lambda: nn.Linear(64, 48, device="meta"), ValueError, "meta device"),
        (lambda: _with_weight(float("nan")), ValueError, "infinities or NaN"),
        (lambda: _with_weight(float("-inf")), ValueError, "infinities or NaN"),
    ],
    ids=["K", "subclass", "convolution", "float64", "meta", "nan", "inf"],
)
def test_a_layer_that_cannot_be_quantized(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"NVFP4Linear.from_linear.*{text}"):
        NVFP4Linear.from_linear(make())


def _with_weight(value: float) -> nn.Linear:
    of = linear()
    with torch.no_grad():
        of.weight[3, 5] = value
    return of


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: x(3, 64).double(), TypeError, "x is torch.float64"),
        (lambda: torch.ones(3, 64, dtype=torch.int64), TypeError, "x is torch.int64"),
        (lambda: x(3, 32), ValueError, r"x has shape \(3, 32\).*in_features = 64"),
        (lambda: x(1)[0], ValueError, r"x has shape \(\)"),
    ],
    ids=["float64", "int64", "shape", "scalar"],
)
def test_input_that_does_not_fit(make: Callable[[], Tensor], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"NVFP4Linear: {text}"):
        NVFP4Linear.from_linear(linear())(make())


def test_a_gradient_that_would_be_lost() -> None:
    made, given = NVFP4Linear.from_linear(linear()), x(3, 64).requires_grad_()
    with pytest.raises(RuntimeError, match=r"x requires grad.*would be lost.*torch\.no_grad\(\)"):
        made(given)
    with pytest.raises(RuntimeError, match="would be lost"):
        made(given * 2)
    with torch.no_grad():
        wanted = made(given)
    with torch.inference_mode():
        assert torch.equal(made(given), wanted)
    assert torch.equal(made(given.detach()), wanted)


def test_requires_grad_of_the_module_changes_nothing() -> None:
    made = NVFP4Linear.from_linear(linear()).requires_grad_()
    assert not made(x(3, 64)).requires_grad


# --- state


def both(static: bool) -> tuple[NVFP4Linear, NVFP4Linear]:
    made = NVFP4Linear.from_linear(linear(seed=3), input_scale=50.0 if static else None)
    return made, NVFP4Linear(64, 48, static_input_scale=static)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("assign", "device"), [(True, "cpu"), (False, "cpu"), (True, "meta")])
def test_a_state_dict_round_trip(static: bool, assign: bool, device: str) -> None:
    made, other = both(static)
    other.to(device)
    stored = io.BytesIO()
    torch.save(made.state_dict(), stored)
    stored.seek(0)
    assert str(other.load_state_dict(torch.load(stored), assign=assign)) == "<All keys matched successfully>"
    assert torch.equal(other(x(5, 64)), made(x(5, 64)))


def test_the_names_of_the_state() -> None:
    made, _ = both(True)
    assert list(made.state_dict()) == ["weight", "weight_scale", "weight_global_scale", "input_scale", "bias"]
    assert list(both(False)[0].state_dict()) == ["weight", "weight_scale", "weight_global_scale", "bias"]
    made.set_input_scale(None)
    made.set_input_scale(2.0)
    assert list(made.state_dict()) == ["weight", "weight_scale", "weight_global_scale", "input_scale", "bias"]


def test_loading_computes_alpha() -> None:
    made, other = both(True)
    made.set_input_scale(13.0)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other.alpha, made.alpha)


def test_a_weight_that_is_loaded_over_one_that_was_used() -> None:
    made, other = both(False)
    other(x(5, 64))
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x(5, 64)), made(x(5, 64)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.update(weight=s["weight"][1:]), "size mismatch for weight"),
        (lambda s: s.pop("weight_scale"), 'Missing key.*"weight_scale"'),
        (lambda s: s.update(input_scale=torch.ones(1)), 'Unexpected key.*"input_scale"'),
        (lambda s: s.update(weight=linear().weight.detach()), "weight is torch.float32 .* torch.uint8"),
        (lambda s: s.update(weight_scale=s["weight_scale"].view(torch.float8_e4m3fn)), "weight_scale is .*float8"),
        (lambda s: s.update(weight_global_scale=torch.ones(1).bfloat16()), "weight_global_scale is torch.bfloat16"),
    ],
    ids=["size", "missing", "unexpected", "not quantized", "scale's dtype", "global scale's dtype"],
)  # fmt: skip
def test_a_state_dict_that_does_not_fit(change: Callable[[dict[str, Any]], Any], text: str) -> None:
    made, other = both(False)
    state = made.state_dict()
    change(state)
    with pytest.raises(RuntimeError, match=text):
        other.load_state_dict(state)


def test_the_state_dict_of_a_linear_layer() -> None:
    with pytest.raises(RuntimeError, match=r"lin\.weight is torch\.float32.*from_linear or quantize_linears"):
        nn.ModuleDict({"lin": NVFP4Linear(64, 48)}).load_state_dict(nn.ModuleDict({"lin": linear()}).state_dict())


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("cast", [
    lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.type(torch.bfloat16),
    lambda m: m.to("meta", torch.float16).to_empty(device="cpu"), lambda m: m.double().float(),
], ids=["to", "half", "type", "meta and back", "double and back"])  # fmt: skip
def test_casts_change_the_bias_only(static: bool, cast: Callable[[nn.Module], NVFP4Linear]) -> None:
    made, _ = both(static)
    before = {name: buffer.clone() for name, buffer in made.named_buffers()}
    emptied = cast(made)
    assert emptied is made
    for name, buffer in made.named_buffers():
        if name != "bias":
            assert (buffer.dtype, buffer.shape, buffer.device.type) == (before[name].dtype, before[name].shape, "cpu")
    assert made.bias is not None
    assert made.bias.dtype != torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_layer_gives_the_same(dtype: torch.dtype) -> None:
    made, _ = both(True)
    cast, given = copy.deepcopy(made).to(dtype), x(5, 64, dtype=dtype)
    largest = made(given.float()).abs().max()
    assert (cast(given).float() - made(given.float())).abs().max() <= ROUNDING[dtype] * largest


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies(static: bool, again: Callable[[NVFP4Linear], NVFP4Linear]) -> None:
    made, _ = both(static)
    other = again(made)
    assert torch.equal(other(x(5, 64)), made(x(5, 64)))
    assert other.weight.data_ptr() != made.weight.data_ptr()
    other.weight.zero_()
    assert not torch.equal(other(x(5, 64)), made(x(5, 64)))


# --- torch.compile and modes


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_compiled_layer(static: bool, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    made, _ = both(static)
    made.to(dtype)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    for shape in ((5, 64), (2, 3, 64)):
        assert torch.equal(compiled(x(*shape, dtype=dtype)), made(x(*shape, dtype=dtype)))


def test_a_compiled_layer_with_any_number_of_rows() -> None:
    torch._dynamo.reset()
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    made, _ = both(True)
    compiled = torch.compile(made, fullgraph=True, backend=counted, dynamic=True)
    for rows in (5, 7, 200):
        assert torch.equal(compiled(x(rows, 64)), made(x(rows, 64)))
    assert counted.frame_count == 1


def test_inductor_and_the_operations_around_a_layer() -> None:
    torch._dynamo.reset()
    made, _ = both(False)
    compiled = torch.compile(lambda given: torch.relu(made(given * 2)) + 1, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x(5, 64)), torch.relu(made(x(5, 64) * 2)) + 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("way", ["new", "loaded", "converted", "switched"])
def test_an_exported_layer(way: str, static: bool, bias: bool) -> None:
    made = NVFP4Linear.from_linear(linear(bias=bias), input_scale=50.0 if static != (way == "switched") else None)
    if way == "switched":
        made.set_input_scale(50.0 if static else None)
    elif way != "converted":
        other = NVFP4Linear(64, 48, bias=bias, static_input_scale=static)
        if way == "loaded":
            other.load_state_dict(made.state_dict(), assign=True)
        made = other
    exported = torch.export.export(made, (x(5, 64),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    for rows in (5, 9):
        assert torch.equal(exported.module()(x(rows, 64)), made(x(rows, 64)))


def test_under_autocast_the_result_has_the_inputs_dtype() -> None:
    made, _ = both(False)
    with torch.autocast("cpu", torch.bfloat16):
        assert made(x(5, 64)).dtype == torch.float32


def test_both_operators_go_the_direct_way() -> None:
    made, _ = both(True)
    made(x(5, 64))
    before = dutyfree.stats()
    made(x(5, 64))
    after = dutyfree.stats()
    for name in ("trtllm::tunable_fp4_quantize", "trtllm::nvfp4_gemm"):
        calls = {path: count - before[name].calls[path] for path, count in after[name].calls.items()}
        assert calls["direct"] == 1
        assert sum(calls.values()) == 1


# --- quantize_linears


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = linear(64, 128)
        self.down = linear(128, 64)

    def forward(self, given: Tensor) -> Tensor:
        down: Tensor = self.down(torch.relu(self.up(given)))
        return given + down


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = linear(64, 30)

    def forward(self, given: Tensor) -> Tensor:
        for block in self.blocks:
            given = block(given)
        result: Tensor = self.head(given)
        return result


ALL = ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"]


def test_every_linear_layer_is_replaced() -> None:
    model = Model()
    wanted = model(x(5, 64))
    replaced = quantize_linears(model)
    assert replaced == ALL
    assert replaced.skipped == {}
    assert [name for name, child in model.named_modules() if isinstance(child, NVFP4Linear)] == ALL
    error = (model(x(5, 64)) - wanted).norm() / wanted.norm()
    assert error < 0.2


def test_a_second_time_there_is_nothing_to_replace() -> None:
    model = Model()
    quantize_linears(model)
    assert quantize_linears(model) == []


@pytest.mark.parametrize(
    ("skip", "stay"),
    [
        (["head"], ["head"]),
        ("head", ["head"]),
        (["*.up", "head"], ["blocks.0.up", "blocks.1.up", "head"]),
        (["blocks.1"], ["blocks.1.up", "blocks.1.down"]),
        (("blocks.?",), ALL[:4]),
        (iter(["blocks.0.up"]), ["blocks.0.up"]),
        (lambda name, layer: layer.out_features == 30, ["head"]),
        (lambda name, layer: name.endswith("down"), ["blocks.0.down", "blocks.1.down"]),
        (["up", "HEAD", "blocks.0.u"], []),
        ([], []),
    ],
    ids=["name", "text", "pattern", "start", "pattern of a start", "iterator", "layer", "predicate", "none", "[]"],
)  # fmt: skip
def test_what_is_skipped(skip: Any, stay: list[str]) -> None:
    model = Model()
    replaced = quantize_linears(model, skip)
    assert replaced == [name for name in ALL if name not in stay]
    assert sorted(replaced.skipped) == sorted(stay)
    assert all("skip" in reason for reason in replaced.skipped.values())
    assert [name for name in ALL if type(model.get_submodule(name)) is nn.Linear] == [n for n in ALL if n in stay]


def test_the_modules_mode_is_kept() -> None:
    model = Model().eval()
    model.head.train()
    quantize_linears(model)
    assert [name for name, child in model.named_modules() if child.training] == ["head"]


def test_what_cannot_be_replaced_stays_with_the_reason() -> None:
    hooked = linear()
    hooked.register_forward_hook(lambda *_: None)
    parametrized = linear()
    torch.nn.utils.parametrizations.weight_norm(parametrized)
    embedding, tied = nn.Embedding(48, 64), linear()
    tied.weight = embedding.weight
    model = nn.ModuleDict({
        "odd": linear(40), "subclass": Scaled(64, 48), "wide": linear(dtype=torch.float64), "hooked": hooked,
        "meta": nn.Linear(64, 48, device="meta"), "nan": _with_weight(float("nan")), "parametrized": parametrized,
        "embedding": embedding, "tied": tied, "good": linear(),
        "attention": nn.MultiheadAttention(64, 4), "encoder": nn.TransformerEncoderLayer(64, 4, 128),
    })  # fmt: skip
    replaced = quantize_linears(model)
    assert replaced == ["good"]
    reasons = {
        "odd": "not a multiple of 16", "subclass": "a subclass of nn.Linear, test_nvfp4_linear.Scaled",
        "wide": "torch.float64", "hooked": "has hooks", "meta": "meta device", "nan": "NaN",
        "parametrized": "a subclass of nn.Linear", "tied": "embedding uses its weight",
        "attention.out_proj": "a subclass", "encoder.self_attn.out_proj": "a subclass",
        "encoder.linear1": "past it", "encoder.linear2": "past it",
    }  # fmt: skip
    assert replaced.skipped.keys() == reasons.keys()
    for name, part in reasons.items():
        assert part in replaced.skipped[name]
        assert f"{name}: {replaced.skipped[name]}" in str(replaced)
    assert model["encoder"].eval()(x(2, 3, 64)).shape == (2, 3, 64)


def _set(name: str, value: Any) -> Callable[[nn.Linear], Any]:
    return lambda layer: setattr(layer, name, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.register_forward_hook(lambda *_: None), "hooks, which would be lost: forward_hooks"),
        (lambda m: m.register_forward_pre_hook(lambda *_: None), "hooks, which would be lost: forward_pre_hooks"),
        (lambda m: m.register_full_backward_hook(lambda *_: None), "hooks, which would be lost: backward_hooks"),
        (lambda m: m.register_full_backward_pre_hook(lambda *_: None), "would be lost: backward_pre_hooks"),
        (lambda m: m.register_state_dict_post_hook(lambda *_: None), "would be lost: state_dict_hooks"),
        (lambda m: m.register_state_dict_pre_hook(lambda *_: None), "would be lost: state_dict_pre_hooks"),
        (lambda m: m.register_load_state_dict_pre_hook(lambda *_: None), "lost: load_state_dict_pre_hooks"),
        (lambda m: m.register_load_state_dict_post_hook(lambda *_: None), "lost: load_state_dict_post_hooks"),
        (lambda m: _set("forward", lambda given: m.weight.sum() * given)(m), "would be lost: forward"),
        (lambda m: m.register_buffer("steps", torch.zeros(1)), "would be lost: steps"),
        (lambda m: m.register_buffer("none", None), "would be lost: none"),
        (lambda m: m.register_parameter("gain", nn.Parameter(torch.ones(1))), "would be lost: gain"),
        (lambda m: m.add_module("adapter", nn.ReLU()), "would be lost: adapter"),
        (_set("rank", 3), "would be lost: rank"),
        (lambda m: m.compile(backend="eager"), "would be lost: _compiled_call_impl"),
        (lambda m: prune.l1_unstructured(m, "weight", 0.5), "would be lost: forward_pre_hooks"),
        (lambda m: delattr(m, "weight"), "it lacks what nn.Linear has: weight"),
        (lambda m: delattr(m, "bias"), "it lacks what nn.Linear has: bias"),
        (lambda m: torch.nn.utils.parametrizations.weight_norm(m), "a subclass of nn.Linear"),
    ],
    ids=[
        "forward", "forward pre", "backward", "backward pre", "state", "state pre", "load pre", "load post",
        "own forward", "buffer", "buffer None", "parameter", "module", "attribute", "compiled", "pruned", "no weight",
        "no bias", "parametrized",
    ],
)  # fmt: skip
def test_a_layer_that_would_lose_something_stays(change: Callable[[nn.Linear], Any], reason: str) -> None:
    model = Model()
    layer = model.head
    change(layer)
    replaced = quantize_linears(model)
    assert replaced == ALL[:4]
    assert model.head is layer
    assert list(replaced.skipped) == ["head"]
    assert reason in replaced.skipped["head"]


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_that_has_nothing_of_its_own_is_replaced(bias: bool) -> None:
    layer = linear(bias=bias)
    layer.register_forward_hook(lambda *_: None).remove()
    for mark in ("_is_hf_initialized", "__overloads__"):
        _set(mark, True)(layer)
    prune.l1_unstructured(layer, "weight", 0.5)
    prune.remove(layer, "weight")
    before = torch.get_rng_state()
    assert quantize_linears(nn.ModuleDict({"only": layer.requires_grad_(False).eval()})) == ["only"]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_layer_with_two_names_is_replaced_once() -> None:
    shared = linear()
    model = nn.ModuleDict({"first": shared, "inner": nn.Sequential(shared), "other": linear(seed=5)})
    assert quantize_linears(model) == ["first", "inner.0", "other"]
    assert model["first"] is model["inner"][0]
    assert isinstance(model["first"], NVFP4Linear)


@pytest.mark.parametrize("skip", ["first", "inner"])
def test_a_layer_with_two_names_one_of_which_is_skipped_stays(skip: str) -> None:
    shared = linear()
    model = nn.ModuleDict({"first": shared, "inner": nn.Sequential(shared)})
    replaced = quantize_linears(model, [skip])
    assert replaced == []
    assert replaced.skipped.keys() == {"first", "inner.0"}


def test_layers_that_share_a_weight_share_the_quantized_one() -> None:
    first, second = linear(), linear(seed=9)
    second.weight = first.weight
    model = nn.ModuleDict({"first": first, "second": second})
    assert quantize_linears(model) == ["first", "second"]
    assert model["first"].weight is model["second"].weight
    assert model["first"].weight_scale is model["second"].weight_scale
    assert not torch.equal(model["first"].bias, model["second"].bias)


def test_a_layer_that_shares_its_weight_with_one_that_is_skipped_stays() -> None:
    first, second = linear(), linear(seed=9)
    second.weight = first.weight
    replaced = quantize_linears(nn.ModuleDict({"first": first, "second": second}), ["second"])
    assert replaced == []
    assert "second uses its weight" in replaced.skipped["first"]


def test_static_scales_by_name() -> None:
    model = Model()
    quantize_linears(model, input_scales={"head": 20.0, "blocks.1.up": torch.tensor(3.0)})
    static = {name: child.input_scale for name, child in model.named_modules() if isinstance(child, NVFP4Linear)}
    assert {name for name, scale in static.items() if scale is not None} == {"head", "blocks.1.up"}
    assert static["head"].item() == 20.0


@pytest.mark.parametrize("scales", [{"inner.0": 3.0}, {"first": 3.0, "inner.0": torch.tensor([3.0])}], ids=len)
def test_a_static_scale_of_a_layer_with_two_names(scales: dict[str, Any]) -> None:
    shared = linear()
    model = nn.ModuleDict({"first": shared, "inner": nn.Sequential(shared)})
    assert quantize_linears(model, input_scales=scales) == ["first", "inner.0"]
    assert model["first"] is model["inner"][0]
    assert model["first"].input_scale.tolist() == [3.0]


def test_two_static_scales_of_one_layer() -> None:
    shared, twin = linear(), linear(seed=9)
    twin.weight = shared.weight
    model = nn.ModuleDict({"first": shared, "inner": nn.Sequential(shared), "twin": twin})
    with pytest.raises(ValueError, match=r"has tensor\(3\.\) for first and 4\.0 for inner\.0, which are one layer"):
        quantize_linears(model, input_scales={"first": torch.tensor(3.0), "inner.0": 4.0})
    assert model["first"] is model["inner"][0] is shared
    quantize_linears(model, input_scales={"first": 3.0, "twin": 4.0})  # two layers that share a weight
    assert [model[name].input_scale.item() for name in ("first", "twin")] == [3.0, 4.0]


def test_a_static_scale_of_what_is_not_replaced() -> None:
    model = Model()
    with pytest.raises(ValueError, match=r"input_scales has hed, head, which are not replaced; replaced would be blo"):
        quantize_linears(model, skip=["head"], input_scales={"hed": 1.0, "head": 1.0})
    with pytest.raises(ValueError, match="one positive number"):
        quantize_linears(model, input_scales={"head": 0.0})
    assert not any(isinstance(child, NVFP4Linear) for child in model.modules())


def test_a_linear_layer_itself() -> None:
    with pytest.raises(TypeError, match=r"below a module.*NVFP4Linear\.from_linear"):
        quantize_linears(linear())


def test_a_module_without_linear_layers() -> None:
    replaced = quantize_linears(nn.Sequential(nn.ReLU()))
    assert replaced == []
    assert str(replaced) == "0 linear layers quantized to NVFP4, 0 left as they are"


@pytest.mark.parametrize("assign", [True, False])
def test_the_state_of_a_quantized_model(assign: bool) -> None:
    first, second = Model(), Model()
    quantize_linears(first, input_scales={"head": 20.0})
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.add_(0.5)
    quantize_linears(second, input_scales={"head": 10.0})
    second.load_state_dict(first.state_dict(), assign=assign)
    assert torch.equal(second(x(5, 64)), first(x(5, 64)))


def test_a_compiled_model() -> None:
    torch._dynamo.reset()
    model = Model()
    quantize_linears(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x(5, 64)), model(x(5, 64)))
