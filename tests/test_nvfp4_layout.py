"""Swizzled scale factors and dequantization, compared with numpy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import dutyfree
import nvfp4_oracle as oracle
from dutyfree import ops
from dutyfree.ops import (
    fp4_dequantize,
    global_scale,
    swizzle_scale_factors,
    tunable_fp4_quantize,
    unswizzle_scale_factors,
)
from nvfp4_cases import OPCHECKED, REFUSED, as_numpy, normal, one

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = [(1, 1), (1, 4), (3, 5), (127, 3), (128, 4), (129, 4), (128, 5), (257, 129), (1000, 64), (31, 256), (33, 2)]


def scales(rows: int, columns: int, seed: int = 0) -> Tensor:
    # No zeros, which padding is, and no NaN.
    return torch.from_numpy(np.random.default_rng(seed).integers(1, 0x7F, (rows, columns), np.uint8))


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


# --- swizzling


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_swizzled_as_the_oracle_does(size: tuple[int, int]) -> None:
    of = scales(*size)
    flat = swizzle_scale_factors(of)
    assert flat.dtype == torch.uint8
    assert flat.shape == (oracle.swizzled_size(*size),)
    assert (flat.numpy() == oracle.swizzle(of.numpy())).all()
    assert (flat != 0).sum() == of.numel()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_unswizzled_again(size: tuple[int, int]) -> None:
    of = scales(*size)
    back = unswizzle_scale_factors(swizzle_scale_factors(of), *size)
    assert back.dtype == torch.uint8
    assert torch.equal(back, of)


@settings(max_examples=150, deadline=None)
@given(rows=st.integers(1, 400), columns=st.integers(1, 40), seed=st.integers(0, 99))
def test_any_size(rows: int, columns: int, seed: int) -> None:
    of = scales(rows, columns, seed)
    flat = swizzle_scale_factors(of)
    assert (flat.numpy() == oracle.swizzle(of.numpy())).all()
    assert torch.equal(unswizzle_scale_factors(flat, rows, columns), of)


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(1, 400), columns=st.integers(1, 40), data=st.data())
def test_one_scale_lies_where_the_formula_says(rows: int, columns: int, data: st.DataObject) -> None:
    m, k = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    of = torch.zeros(rows, columns, dtype=torch.uint8)
    of[m, k] = 0x55
    offset = (m // 128 * -(-columns // 4) + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4
    assert swizzle_scale_factors(of).nonzero().tolist() == [[offset]]


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 300), columns=st.integers(1, 20))
def test_what_lies_in_padding_is_not_seen(rows: int, columns: int) -> None:
    flat = torch.full((oracle.swizzled_size(rows, columns),), 0xEE, dtype=torch.uint8)
    flat[torch.from_numpy(oracle.offsets(rows, columns)).flatten()] = 0x11
    assert (unswizzle_scale_factors(flat, rows, columns) == 0x11).all()


def test_a_tile_is_the_published_one() -> None:
    # Row m of a 128 × 4 tile starts at 16 · (m mod 32) + 4 · (m / 32).
    of = torch.arange(512, dtype=torch.int32).reshape(128, 4)
    low = swizzle_scale_factors((of % 256).to(torch.uint8)).int()
    high = swizzle_scale_factors((of // 256).to(torch.uint8)).int()
    assert (low + 256 * high).reshape(32, 4, 4).tolist() == of.reshape(4, 32, 4).transpose(0, 1).tolist()


def test_the_quantizer_swizzles_in_the_same_way() -> None:
    x = normal(130, 80)
    scale = global_scale(x)
    _, linear = tunable_fp4_quantize(x, scale)
    _, swizzled = tunable_fp4_quantize(x, scale, 16, True)
    assert torch.equal(swizzle_scale_factors(linear.view(130, 5)), swizzled)
    assert torch.equal(unswizzle_scale_factors(swizzled, 130, 5).flatten(), linear)


def test_nothing_to_swizzle() -> None:
    flat = swizzle_scale_factors(torch.empty(0, 4, dtype=torch.uint8))
    assert flat.shape == (0,)
    assert unswizzle_scale_factors(flat, 0, 4).shape == (0, 4)


def test_strided_scales_are_read_right_or_refused() -> None:
    of = scales(5, 130).t()
    try:
        flat = swizzle_scale_factors(of)
    except REFUSED as error:
        assert "contiguous" in str(error)
    else:
        assert torch.equal(flat, swizzle_scale_factors(of.contiguous()))


SWIZZLE_BAD: list[tuple[str, Callable[[], Tensor]]] = [
    ("float32", lambda: scales(5, 4).float()),
    ("int8", lambda: scales(5, 4).view(torch.int8)),
    ("rank 1", lambda: scales(5, 4).flatten()),
    ("rank 3", lambda: scales(5, 4)[None]),
]


@pytest.mark.parametrize("make", [case[1] for case in SWIZZLE_BAD], ids=[case[0] for case in SWIZZLE_BAD])
def test_scales_that_cannot_be_swizzled(make: Callable[[], Tensor]) -> None:
    with pytest.raises(REFUSED, match="swizzle_scale_factors"):
        swizzle_scale_factors(make())


@pytest.mark.parametrize(
    ("flat", "rows", "columns"),
    [
        (torch.zeros(511, dtype=torch.uint8), 5, 4),
        (torch.zeros(1024, dtype=torch.uint8), 5, 4),
        (torch.zeros(0, dtype=torch.uint8), 5, 4),
        (torch.zeros(512), 5, 4),
        (torch.zeros(512, dtype=torch.uint8), -5, 4),
        (torch.zeros(512, dtype=torch.uint8), 5, -4),
        (torch.zeros(512, dtype=torch.uint8), 129, 4),
        (torch.zeros(512, dtype=torch.uint8), 5, 5),
    ],
    ids=["short", "long", "empty", "float32", "negative rows", "negative columns", "more rows", "more columns"],
)
def test_scales_that_cannot_be_unswizzled(flat: Tensor, rows: int, columns: int) -> None:
    with pytest.raises(REFUSED, match="unswizzle_scale_factors"):
        unswizzle_scale_factors(flat, rows, columns)


# --- dequantizing


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (5, 40), (129, 8), (2, 3, 24), (1, 2, 1, 8), (64, 1024)], ids=str)
def test_dequantized_as_the_oracle_does(shape: tuple[int, ...], dtype: torch.dtype, swizzled: bool) -> None:
    of = values(*shape)
    rows, columns = of.numel() // shape[-1], shape[-1] // 8
    linear = torch.from_numpy(np.random.default_rng(1).integers(0x20, 0x58, (rows, columns), np.uint8))
    given = torch.from_numpy(oracle.swizzle(linear.numpy())) if swizzled else linear.flatten()
    # A power of two: e2m1 · e4m3 / g is exact in each dtype.
    found = fp4_dequantize(of, given, one(4.0), dtype, swizzled)
    assert found.dtype == dtype
    assert found.shape == (*shape[:-1], shape[-1] * 2)
    exact = oracle.dequantize(of.numpy().reshape(rows, -1), linear.numpy(), 4.0)
    assert (found.double().numpy().reshape(exact.shape) == exact).all()


@pytest.mark.parametrize("g", [1.0, 123.456, 2688 / 5.1875, 1e-6, 1e6])
def test_another_global_scale_rounds_as_float32_does(g: float) -> None:
    of, linear = values(64, 64), scales(64, 8)
    found = fp4_dequantize(of, linear.flatten(), one(g))
    exact = oracle.dequantize(of.numpy(), linear.numpy(), np.float32(g))
    np.testing.assert_allclose(found.double().numpy(), exact, rtol=2.5e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_another_dtype_is_rounded_once(dtype: torch.dtype) -> None:
    of, linear = values(64, 64), scales(64, 8).clamp(0x20, 0x58)
    in_float32 = fp4_dequantize(of, linear.flatten(), one(123.456))
    assert torch.equal(fp4_dequantize(of, linear.flatten(), one(123.456), dtype), in_float32.to(dtype))


def test_every_code_with_every_scale() -> None:
    of = np.repeat(np.arange(16, dtype=np.uint8)[None, ::2] + (np.arange(1, 16, 2, dtype=np.uint8) << 4), 128, 0)
    linear = np.arange(128, dtype=np.uint8)[:, None]
    found = fp4_dequantize(torch.from_numpy(of), torch.from_numpy(linear).flatten(), one(1.0))
    np.testing.assert_array_equal(found.double().numpy(), oracle.dequantize(of, linear))
    assert found[127].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("swizzled", [False, True])
def test_no_rows(dtype: torch.dtype, swizzled: bool) -> None:
    nothing = torch.empty(0, dtype=torch.uint8)
    for shape in ((0, 8), (2, 0, 8)):
        found = fp4_dequantize(torch.empty(shape, dtype=torch.uint8), nothing, one(1.0), dtype, swizzled)
        assert (found.shape, found.dtype) == ((*shape[:-1], 16), dtype)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 140),
    blocks=st.integers(1, 9),
    exponent=st.integers(-20, 20),
    swizzled=st.booleans(),
    seed=st.integers(0, 999),
)
def test_quantizing_and_back_is_near(rows: int, blocks: int, exponent: int, swizzled: bool, seed: int) -> None:
    x = normal(rows, blocks * 16, seed=seed) * 2.0**exponent
    scale = global_scale(x)
    quantized, factors = tunable_fp4_quantize(x, scale, 16, swizzled)
    back = fp4_dequantize(quantized, factors, scale, torch.float32, swizzled)
    linear = unswizzle_scale_factors(factors, rows, blocks) if swizzled else factors.view(rows, blocks)
    step = oracle.E4M3[linear.numpy()].repeat(16, 1) / scale.item()
    # Codes are 0.5 apart up to 2, 1 up to 4 and 2 up to 6: half of that in scales, or a quarter of the number itself.
    # Scales round down by up to 1/16 (where they are normal numbers), so that up to 6.4 saturates at 6.
    bound = np.maximum(step * 0.25, np.abs(as_numpy(x)) / 4) * (1 + 1e-5)
    normal_scale = linear.numpy().repeat(16, 1) >= 8
    assert (np.abs(as_numpy(back) - as_numpy(x)) <= bound)[normal_scale].all()


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 140), blocks=st.integers(1, 9), seed=st.integers(0, 999))
def test_what_was_dequantized_quantizes_to_the_same(rows: int, blocks: int, seed: int) -> None:
    x = normal(rows, blocks * 16, seed=seed)
    quantized, factors = tunable_fp4_quantize(x, one(64.0))
    back = fp4_dequantize(quantized, factors, one(64.0))
    # The largest code of each block is ±6 where the scale was not rounded up a lot, and then nothing changes.
    codes = oracle.unpack(quantized.numpy()).reshape(rows, blocks, 16)
    full = ((codes & 7) == 7).any(-1)
    again, factors_again = tunable_fp4_quantize(back, one(64.0))
    codes_again = oracle.unpack(again.numpy()).reshape(rows, blocks, 16)
    assert (factors_again.numpy() == factors.numpy()).reshape(rows, blocks)[full].all()
    assert (codes_again == codes)[full].all()


DEQUANTIZE_BAD: list[tuple[str, Callable[[], tuple[Any, ...]]]] = [
    ("values are float32", lambda: (values(5, 32).float(), scales(5, 4).flatten(), one(1.0))),
    ("scales are float32", lambda: (values(5, 32), scales(5, 4).flatten().float(), one(1.0))),
    ("scales are few", lambda: (values(5, 32), scales(5, 4).flatten()[1:], one(1.0))),
    ("scales are many", lambda: (values(5, 32), scales(5, 5).flatten(), one(1.0))),
    ("scales are not swizzled", lambda: (values(5, 32), scales(5, 4).flatten(), one(1.0), torch.float32, True)),
    ("scales are swizzled", lambda: (values(5, 32), swizzle_scale_factors(scales(5, 4)), one(1.0))),
    ("global scale is float64", lambda: (values(5, 32), scales(5, 4).flatten(), one(1.0).double())),
    ("two global scales", lambda: (values(5, 32), scales(5, 4).flatten(), torch.ones(2))),
    ("half a block", lambda: (values(5, 12), scales(5, 1).flatten(), one(1.0))),
    ("result is int32", lambda: (values(5, 32), scales(5, 4).flatten(), one(1.0), torch.int32)),
    ("scales on meta", lambda: (values(5, 32), scales(5, 4).flatten().to("meta"), one(1.0))),
    ("rank 0", lambda: (values(1)[0], scales(1, 1).flatten(), one(1.0))),
]


@pytest.mark.parametrize("make", [case[1] for case in DEQUANTIZE_BAD], ids=[case[0] for case in DEQUANTIZE_BAD])
def test_what_cannot_be_dequantized(make: Callable[[], tuple[Any, ...]]) -> None:
    with pytest.raises(REFUSED, match="fp4_dequantize"):
        fp4_dequantize(*make())


# --- without data, compiled, direct


def test_shapes_without_data() -> None:
    with FakeTensorMode():
        byte = {"dtype": torch.uint8}
        assert fp4_dequantize(torch.empty(2, 3, 24, **byte), torch.empty(18, **byte), torch.empty(1)).shape == (
            2,
            3,
            48,
        )
        assert swizzle_scale_factors(torch.empty(129, 5, **byte)).shape == (2048,)
        assert unswizzle_scale_factors(torch.empty(2048, **byte), 129, 5).shape == (129, 5)


def test_opcheck() -> None:
    flat = swizzle_scale_factors(scales(5, 4))
    cases = [
        (torch.ops.dutyfree.fp4_dequantize.default, (values(5, 32), flat, one(3.0), torch.bfloat16, True)),
        (torch.ops.dutyfree.swizzle_scale_factors.default, (scales(5, 4),)),
    ]
    for op, arguments in cases:
        torch.library.opcheck(op, arguments, test_utils=OPCHECKED)


def test_compiled() -> None:
    torch._dynamo.reset()

    def run(x: Tensor) -> tuple[Tensor, ...]:
        scale = global_scale(x)
        quantized, linear = tunable_fp4_quantize(x, scale)
        flat = swizzle_scale_factors(linear.view(5, 4))
        back = unswizzle_scale_factors(flat, 5, 4)
        return flat, back, fp4_dequantize(quantized, flat, scale, torch.bfloat16, True)

    x = normal(5, 64)
    for seen, wanted in zip(torch.compile(run, fullgraph=True, backend="aot_eager")(x), run(x), strict=True):
        assert torch.equal(seen, wanted)


def test_the_calls_go_the_direct_way() -> None:
    given = (values(5, 32), scales(5, 4).flatten(), one(1.0))
    assert dutyfree.explain(torch.ops.dutyfree.fp4_dequantize, *given).path == "direct"
    assert dutyfree.explain(torch.ops.dutyfree.swizzle_scale_factors, scales(5, 4)).path == "direct"


# --- memory that is not there


def freed(*shape: int) -> Tensor:
    tensor = torch.zeros(*shape, dtype=torch.uint8)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("index", range(4))
def test_a_product_of_freed_memory_is_refused(index: int) -> None:
    sizes = [(16, 32), (16, 32), (512,), (512,)]
    given = [torch.zeros(*size, dtype=torch.uint8) for size in sizes]
    given[index] = freed(*sizes[index])
    with pytest.raises(ValueError, match="storage"):
        ops.nvfp4_gemm(*given, torch.ones(1), torch.float32)


def test_freed_memory_is_refused_by_the_others() -> None:
    scales = torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(ValueError, match="storage"):
        ops.fp4_dequantize(freed(16, 8), scales, torch.ones(1))
    with pytest.raises(ValueError, match="storage"):
        ops.swizzle_scale_factors(freed(16, 4))
    with pytest.raises(ValueError, match="storage"):
        ops.unswizzle_scale_factors(freed(512), 16, 4)
    given = torch.zeros(16, 32, dtype=torch.bfloat16)
    given.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="storage"):
        ops.tunable_fp4_quantize(given, torch.ones(1))


def test_swizzling_no_columns() -> None:
    assert ops.swizzle_scale_factors(torch.empty(2**62, 0, dtype=torch.uint8)).numel() == 0


# --- the target that is forced


def test_forced_targets_need_not_end_in_order() -> None:
    first, second = ops.nvfp4.force_target("portable"), ops.nvfp4.force_target("portable")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert ops.nvfp4._forced == []


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="-5"):
        ops.nvfp4.limit_packed_weights(-5)
