"""``trtllm::tunable_fp4_quantize`` on a CPU, compared with numpy's arithmetic, with every set of kernels.

``DUTYFREE_NVFP4_VALUES=100000000`` quantizes that many random values; without it there are 8 million.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import dutyfree
import nvfp4_oracle as oracle
from dutyfree.ops import global_scale, nvfp4, tunable_fp4_quantize
from isolated import run_isolated
from nvfp4_cases import OPCHECKED, REFUSED, as_numpy, normal, one, target

__all__ = ["target"]  # a fixture

VALUES = int(os.environ.get("DUTYFREE_NVFP4_VALUES", 8_000_000))
DTYPES = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float32]
# Around the 128 rows and 4 blocks that swizzled scales are padded to.
SIZES = [(1, 16), (3, 48), (5, 64), (31, 80), (127, 64), (128, 128), (129, 16), (257, 144), (33, 4096), (2, 16384)]


@pytest.fixture(autouse=True)
def _no_warning() -> Iterator[None]:
    # Extreme global scales look like a reciprocal by mistake; the one test of that warning runs alone.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*reciprocal")
        yield


# What was found right, by its hash: the oracle takes most of the time.
_right: set[bytes] = set()


def both_layouts(given: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values, linear scales (M, K / 16) and swizzled scales, after comparing what both layouts have in common."""
    rows, columns = given.numel() // given.shape[-1], given.shape[-1]
    values, linear = tunable_fp4_quantize(given, scale)
    again, swizzled = tunable_fp4_quantize(given, scale, 16, True)
    assert torch.equal(values, again)
    assert values.dtype == linear.dtype == swizzled.dtype == torch.uint8
    assert values.shape == (*given.shape[:-1], columns // 2)
    assert linear.shape == (rows * (columns // 16),)
    assert swizzled.shape == (oracle.swizzled_size(rows, columns // 16),)
    assert all(part.is_contiguous() for part in (values, linear, swizzled))
    return values.reshape(rows, -1), linear.reshape(rows, -1), swizzled


def check(given: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes with both layouts and compares with the oracle."""
    values, linear, swizzled = both_layouts(given, scale)
    bits = given.contiguous().view(torch.uint8)
    called = hashlib.sha256(b"".join(part.numpy().tobytes() for part in (bits, scale, values, linear))).digest()
    if called not in _right:  # else another target gave the same
        g = scale.double().numpy().reshape(-1)
        assert oracle.faults(as_numpy(given), g, values.numpy(), linear.numpy()) == []
        _right.add(called)
    assert (swizzled.numpy() == oracle.swizzle(linear.numpy())).all()
    return values, linear


def codes(values: Tensor) -> list[list[int]]:
    return oracle.unpack(values.numpy()).tolist()


# --- sizes, dtypes, layouts


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_one_scale_for_the_tensor(target: str, dtype: torch.dtype, size: tuple[int, int]) -> None:
    given = normal(*size).to(dtype)
    check(given, global_scale(given.float()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_one_scale_for_each_row(target: str, dtype: torch.dtype, size: tuple[int, int]) -> None:
    given = normal(*size).to(dtype)
    check(given, 2688 / given.float().abs().amax(-1) * torch.linspace(0.25, 2, size[0]))


@pytest.mark.parametrize("shape", [(1, 1, 16), (2, 3, 48), (4, 33, 64), (2, 1, 3, 80), (1, 1, 1, 1, 16)], ids=str)
@pytest.mark.parametrize("per_row", [False, True])
def test_more_dimensions(target: str, shape: tuple[int, ...], per_row: bool) -> None:
    given = normal(*shape, dtype=torch.bfloat16)
    check(given, torch.linspace(50, 900, given.numel() // shape[-1]) if per_row else one(123.0))


@pytest.mark.parametrize("shape", [(0, 16), (0, 4096), (2, 0, 64), (0, 3, 48)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("swizzled", [False, True])
def test_no_rows(target: str, shape: tuple[int, ...], dtype: torch.dtype, swizzled: bool) -> None:
    values, scales = tunable_fp4_quantize(torch.empty(shape, dtype=dtype), one(1.0), 16, swizzled)
    assert values.shape == (*shape[:-1], shape[-1] // 2)
    assert scales.shape == (0,)


@pytest.mark.parametrize("scale", [torch.tensor(7.0), torch.tensor([7.0]), torch.tensor([[7.0]])], ids=str)
def test_forms_of_one_scale(scale: Tensor) -> None:
    given = normal(5, 64)
    values, _ = check(given, scale)
    assert torch.equal(values, tunable_fp4_quantize(given, torch.full((5,), 7.0))[0])


def test_padding_is_zero_in_reused_memory(target: str) -> None:
    for _ in range(20):
        rubbish = [torch.full((oracle.swizzled_size(3, 5),), 255, dtype=torch.uint8) for _ in range(8)]
        del rubbish
        check(normal(3, 80), one(100.0))


def test_input_that_starts_at_any_address(target: str) -> None:
    whole = normal(1, 4096, dtype=torch.bfloat16).flatten()
    for start in range(17):
        check(whole[start : start + 3 * 80].view(3, 80), one(400.0))


def test_arguments_are_not_written_to() -> None:
    given, scale = normal(5, 64), one(100.0)
    before = given.clone()
    tunable_fp4_quantize(given, scale)
    assert torch.equal(given, before)
    assert scale.item() == 100.0
    assert (given._version, scale._version) == (0, 0)


def test_the_result_is_a_list_of_two() -> None:
    result = tunable_fp4_quantize(normal(5, 64), one(100.0))
    assert type(result) is list
    assert len(result) == 2


def test_every_target_gives_the_same_scales() -> None:
    given = normal(64, 1024, dtype=torch.bfloat16)
    found = []
    for name in nvfp4.available_targets():
        with nvfp4.force_target(name):
            found.append(tunable_fp4_quantize(given, global_scale(given), 16, True)[1])
    assert all(torch.equal(scales, found[0]) for scales in found)


# --- targets


def test_targets() -> None:
    names = nvfp4.available_targets()
    assert names[0] == "portable"
    assert [name for name in ("portable", "avx2", "avx512_bf16", "avx512_vnni") if name in names] == names


def test_a_target_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"sse9.*portable"), nvfp4.force_target("sse9"):
        pass


def test_forcing_no_target() -> None:
    with nvfp4.force_target(None):
        check(normal(5, 64), one(100.0))


def test_a_forced_target_ends_with_its_block_also_by_an_exception() -> None:
    with pytest.raises(KeyError), nvfp4.force_target("portable"):
        raise KeyError
    check(normal(5, 64), one(100.0))


# --- special values

NAN, INF = float("nan"), float("inf")
# Each is the first lanes of a block; the rest are zeros. With g = 1 and a largest value of 6 the scale is 1.
TIES = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6]
TIE_CODES = [7, 0, 2, 2, 4, 4, 6, 6, 8, 10, 10, 12, 12, 14, 14, 15]


def block(*lanes: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([[*lanes, *[0.0] * (16 - len(lanes))]]).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("g", [1.0, 2.0, 0.125, 64.0])
def test_ties_go_to_the_even_code(target: str, dtype: torch.dtype, g: float) -> None:
    values, scales = check(block(*TIES, dtype=dtype), one(g))
    assert codes(values) == [TIE_CODES]
    assert oracle.E4M3[scales.numpy()].tolist() == [[g]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_keep_their_sign_in_a_block_that_is_not_zero(target: str, dtype: torch.dtype) -> None:
    values, _ = check(block(6, 0.0, -0.0, -6, dtype=dtype), one(1.0))
    assert codes(values)[0][:5] == [7, 0, 8, 15, 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_block_of_zeros(target: str, dtype: torch.dtype, zero: float) -> None:
    given = torch.cat([torch.full((1, 16), zero), block(6)], 1).to(dtype)
    values, scales = check(given, one(1.0))
    assert scales.tolist() == [[0, 0x38]]
    assert (values[:, :8] & 0x77 == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lane", range(16))
def test_a_nan_is_six_and_does_not_count_for_the_scale(target: str, dtype: torch.dtype, lane: int) -> None:
    lanes = [3.0, -1.5, *[0.0] * 14]
    lanes[lane] = NAN
    values, scales = check(torch.tensor([lanes]).to(dtype), one(1.0))
    assert codes(values)[0][lane] == 7
    assert oracle.E4M3[scales.numpy()].item() == (0.25 if lane == 0 else 0.5)


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000 - (1 << 32), 0x7F800001, 0xFFFFFFFF - (1 << 32)])
def test_every_kind_of_nan_is_plus_six(target: str, bits: int) -> None:
    given = block(6).view(torch.int32)
    given[0, 3:5] = bits
    values, _ = check(given.view(torch.float32), one(1.0))
    assert codes(values)[0][3:5] == [7, 7]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_block_of_nan(target: str, dtype: torch.dtype) -> None:
    values, scales = check(torch.full((2, 32), NAN).to(dtype), one(1.0))
    assert (values == 0x77).all()
    assert (scales == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("g", [1.0, 448.0, 1e-3])
def test_infinities(target: str, dtype: torch.dtype, g: float) -> None:
    values, scales = check(block(INF, -INF, 1, -0.0, NAN, dtype=dtype), one(g))
    assert scales.item() == 0x7E
    assert codes(values)[0][:2] == [7, 15]


@pytest.mark.parametrize("g", [1.0, 1e30, 1e35])
def test_denormal_values(target: str, g: float) -> None:
    float32 = torch.tensor([[1e-45, -1e-45, 1e-40, -1.1e-38, 3e-39, *[0.0] * 11]])
    check(float32, one(g))
    check(float32.bfloat16(), one(g))
    check(torch.tensor([[6e-8, -6e-8, 6e-5, 3e-6, *[0.0] * 12]]).half(), one(g))
    check(torch.arange(16, dtype=torch.uint8).view(torch.float8_e4m3fn)[None], one(g))


@pytest.mark.parametrize("factor", [1 - 2**-20, 1.0, 0.5, 1e-3, 1e-20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_scale_that_rounds_to_zero(target: str, factor: float, dtype: torch.dtype) -> None:
    # 2^-10, half the smallest e4m3 number, rounds to zero.
    values, scales = check(block(6, -6, 0.5, -0.001, 0.0, -0.0, NAN, dtype=dtype), one(2**-10 * factor))
    assert scales.item() == 0
    assert codes(values)[0] == [7, 15, 7, 15, 7, 7, 7, *[7] * 9]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_smallest_scale(target: str, dtype: torch.dtype) -> None:
    values, scales = check(block(6, -6, 0.5, dtype=dtype), one(2**-10 * (1 + 2**-20)))
    assert scales.item() == 1
    assert codes(values)[0][3:] == [0] * 13


@pytest.mark.parametrize("g", [431.9999, 432.0, 440.0, 447.99997, 448.0, 463.9, 464.0, 465.0, 480.0, 1e4, 1e20, 1e35])
def test_scales_end_at_448(target: str, g: float) -> None:
    values, scales = check(block(6, -3, 1e-3, -1e-7), one(g))
    assert oracle.E4M3[scales.item()] == (448 if g >= 432 else 416)
    assert codes(values)[0][0] == 7


@pytest.mark.parametrize("value", [1.0, 1e3, 3e38])
def test_a_scale_of_more_than_float32_holds_saturates(target: str, value: float) -> None:
    _, linear, _ = both_layouts(block(value, -value), one(3e38))
    assert linear.item() == 0x7E


@pytest.mark.parametrize("g", [1e-35, 3e-20])
def test_a_small_global_scale(target: str, g: float) -> None:
    check(block(3e38, -1e38, 3e37, 1e10), one(g))


def test_global_scales_of_rows_do_not_mix(target: str) -> None:
    given = normal(6, 64)
    given[2] = 0
    given[3, 5] = NAN
    given[4, 5] = INF
    check(given, torch.tensor([1.0, 1e-30, 500.0, 2**-12, 3e5, 1e20]))


# --- every bit pattern

SCALES = [1.0, 2688 / 4.5, 2688 / 5.1875, 123.456, 1e-3, 2**-12, 1e30, 2688 / 3e38]


def patterns(dtype: torch.dtype) -> Tensor:
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype)
    return torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("g", SCALES)
def test_every_bit_pattern_among_its_neighbours(target: str, dtype: torch.dtype, g: float) -> None:
    check(patterns(dtype).view(-1, 64), one(g))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("g", SCALES)
def test_every_bit_pattern_among_others(target: str, dtype: torch.dtype, g: float) -> None:
    every = patterns(dtype)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(1))
    every = every.view(torch.uint8).view(len(every), -1)[order].flatten().view(dtype)
    check(every.view(-1, 256), one(g))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("g", SCALES)
def test_every_bit_pattern_as_the_largest_of_its_block(target: str, dtype: torch.dtype, g: float) -> None:
    every = patterns(dtype).float()
    blocks = every[:, None] * torch.tensor([[1, 0.5, 0.25, 0.125, -1, -0.75, 0.625, -0.0]])
    check(torch.cat([blocks, every[:, None] * torch.linspace(0, 1, 8)], 1).to(dtype), one(g))


# --- many values


def test_many_random_values(target: str) -> None:
    # A part for each target, so that all together there are VALUES.
    share = VALUES // len(nvfp4.available_targets())
    generator = torch.Generator().manual_seed(7)
    columns, step = 4096, 1024
    for start in range(0, share, columns * step):
        rows = min(step, -(-(share - start) // columns))
        magnitude = torch.exp2(torch.rand(rows, 1, generator=generator) * 24 - 12)
        given = (torch.randn(rows, columns, generator=generator) * magnitude).bfloat16()
        per_row = start // (columns * step) % 2 == 1
        scale = 2688 / given.abs().amax(-1).float() if per_row else global_scale(given)
        values, scales = tunable_fp4_quantize(given, scale, 16, per_row)
        linear = scales.numpy()
        linear = oracle.unswizzle(linear, rows, columns // 16) if per_row else linear.reshape(rows, -1)
        assert oracle.faults(as_numpy(given), scale.numpy(), values.numpy(), linear) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_values_with_a_scale_each_row(target: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(11)
    given = (torch.randn(512, 512, generator=generator) * torch.rand(512, 1, generator=generator)).to(dtype)
    check(given, torch.exp2(torch.rand(512, generator=generator) * 40 - 16))


# --- the global scale


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_the_global_scale(dtype: torch.dtype) -> None:
    given = normal(5, 64, dtype=dtype)
    scale = global_scale(given)
    assert scale.dtype == torch.float32
    assert scale.numel() == 1
    np.testing.assert_allclose(scale.item(), 2688 / given.double().abs().max().item(), rtol=2e-7)


def test_the_global_scale_of_a_negative_largest_value() -> None:
    assert global_scale(torch.tensor([[1.0, -42.0]])).item() == 64


@pytest.mark.parametrize("given", [torch.zeros(3, 16), torch.zeros(0, 16)], ids=["zeros", "no elements"])
def test_the_global_scale_of_nothing(given: Tensor) -> None:
    assert global_scale(given).item() == 1


def test_the_largest_value_is_kept_with_its_global_scale(target: str) -> None:
    given = normal(64, 256)
    values, scales = check(given, global_scale(given))
    assert scales.max() == 0x7E
    back = oracle.dequantize(values.numpy(), scales.numpy(), global_scale(given).item())
    at = given.abs().argmax().item()
    np.testing.assert_allclose(back.flat[at], given.flatten()[at].item(), rtol=1e-6)


# --- a reciprocal scale by mistake


def reciprocal_scale_warns_once() -> None:
    given = normal(64, 256)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        tunable_fp4_quantize(given, global_scale(given))
        tunable_fp4_quantize(torch.zeros(64, 256), one(1.0))
        tunable_fp4_quantize(torch.empty(0, 256), one(1.0))
        assert not seen
        for _ in range(3):
            _, scales = tunable_fp4_quantize(given, 1 / global_scale(given))
            assert (scales == 0).float().mean() > 0.9
    assert len(seen) == 1
    print(seen[0].category.__name__, seen[0].message)


def test_a_reciprocal_scale_warns_once() -> None:
    text = run_isolated(reciprocal_scale_warns_once)
    assert "tunable_fp4_quantize" in text
    assert "input_scale" in text
    assert "reciprocal" in text
    assert "torchao" in text


# --- errors

BAD: list[tuple[str, Callable[[], tuple[Any, ...]], str]] = [
    ("float64", lambda: (normal(5, 64).double(), one(1.0)), "input"),
    ("int32", lambda: (torch.ones(5, 64, dtype=torch.int32), one(1.0)), "input"),
    ("uint8", lambda: (torch.ones(5, 64, dtype=torch.uint8), one(1.0)), "input"),
    ("complex64", lambda: (torch.ones(5, 64, dtype=torch.complex64), one(1.0)), "input"),
    ("e5m2", lambda: (normal(5, 64).to(torch.float8_e5m2), one(1.0)), "input"),
    ("float64 scale", lambda: (normal(5, 64), one(1.0).double()), "input_scale"),
    ("bfloat16 scale", lambda: (normal(5, 64), one(1.0).bfloat16()), "input_scale"),
    ("int64 scale", lambda: (normal(5, 64), torch.ones(1, dtype=torch.int64)), "input_scale"),
    ("two scales", lambda: (normal(5, 64), torch.ones(2)), "input_scale"),
    ("six scales", lambda: (normal(5, 64), torch.ones(6)), "input_scale"),
    ("no scale", lambda: (normal(5, 64), torch.ones(0)), "input_scale"),
    ("a scale for each element", lambda: (normal(5, 64), torch.ones(5, 64)), "input_scale"),
    ("K is 8", lambda: (normal(5, 8), one(1.0)), "16"),
    ("K is 40", lambda: (normal(5, 40), one(1.0)), "16"),
    ("K is 17", lambda: (normal(2, 3, 17), one(1.0)), "16"),
    ("rank 1", lambda: (normal(64), one(1.0)), "input"),
    ("rank 0", lambda: (normal(1)[0], one(1.0)), "input"),
    ("transposed", lambda: (normal(64, 64).t(), one(1.0)), "contiguous"),
    ("sliced", lambda: (normal(5, 128)[:, :64], one(1.0)), "contiguous"),
    ("every other row", lambda: (normal(10, 64)[::2], one(1.0)), "contiguous"),
    ("expanded", lambda: (normal(1, 64).expand(5, 64), one(1.0)), "contiguous"),
    ("vectors of 32", lambda: (normal(5, 64), one(1.0), 32), "scaling_vector_size"),
    ("vectors of 0", lambda: (normal(5, 64), one(1.0), 0), "scaling_vector_size"),
    ("vectors of -16", lambda: (normal(5, 64), one(1.0), -16), "scaling_vector_size"),
    ("input on meta", lambda: (normal(5, 64).to("meta"), one(1.0)), "meta"),
    ("scale on meta", lambda: (normal(5, 64), one(1.0).to("meta")), "meta"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "part"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
@pytest.mark.parametrize("op", [tunable_fp4_quantize, torch.ops.trtllm.tunable_fp4_quantize], ids=["ours", "torch.ops"])
def test_what_is_refused(op: Any, make: Callable[[], tuple[Any, ...]], part: str) -> None:
    for layout in (False, True):
        given = make()
        given = (*given, layout) if len(given) == 3 else (*given, 16, layout)
        with pytest.raises(REFUSED) as caught:
            op(*given)
        assert "tunable_fp4_quantize" in str(caught.value)
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [lambda: normal(64).requires_grad_(False), lambda: normal(5, 40), lambda: normal(5, 64).double()],
    ids=["rank", "K", "dtype"],
)
def test_what_is_refused_is_refused_without_data_too(make: Callable[[], Tensor]) -> None:
    with FakeTensorMode(), pytest.raises(REFUSED):
        tunable_fp4_quantize(make(), torch.empty(1))


def test_a_refused_call_leaves_the_operator_working() -> None:
    with pytest.raises(REFUSED):
        tunable_fp4_quantize(normal(5, 40), one(1.0))
    check(normal(5, 64), one(100.0))


# --- fake kernel, torch.compile, opcheck


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 16), (5, 80), (129, 64), (2, 3, 48), (0, 64)], ids=str)
@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_shapes_without_data(kind: str, shape: tuple[int, ...], dtype: torch.dtype, swizzled: bool) -> None:
    real = tunable_fp4_quantize(torch.zeros(shape).to(dtype), one(1.0), 16, swizzled)
    if kind == "fake":
        with FakeTensorMode():
            found = tunable_fp4_quantize(torch.empty(shape, dtype=dtype), torch.empty(1), 16, swizzled)
    else:
        meta = torch.device("meta")
        found = tunable_fp4_quantize(
            torch.empty(shape, dtype=dtype, device=meta), torch.empty(1, device=meta), 16, swizzled
        )
    assert [(part.shape, part.dtype, part.stride()) for part in found] == [
        (part.shape, part.dtype, part.stride()) for part in real
    ]
    assert all(part.device.type == ("cpu" if kind == "fake" else "meta") for part in found)


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("shape", [(5, 80), (2, 3, 48)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_opcheck(shape: tuple[int, ...], dtype: torch.dtype, swizzled: bool) -> None:
    op = torch.ops.trtllm.tunable_fp4_quantize.default
    torch.library.opcheck(op, (normal(*shape, dtype=dtype), one(100.0), 16, swizzled), test_utils=OPCHECKED)


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("op", [tunable_fp4_quantize, torch.ops.trtllm.tunable_fp4_quantize], ids=["ours", "torch.ops"])
def test_compiled(op: Any, swizzled: bool) -> None:
    torch._dynamo.reset()

    def run(given: Tensor, scale: Tensor) -> list[Tensor]:
        values, scales = op(given * 2, scale, 16, swizzled)
        return [values, scales, values.new_zeros(scales.shape[0])]

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    given = normal(5, 80, dtype=torch.bfloat16)
    for seen, wanted in zip(compiled(given, one(100.0)), run(given, one(100.0)), strict=True):
        assert torch.equal(seen, wanted)


def test_compiled_by_inductor() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda given, scale: tunable_fp4_quantize(given * 2, scale, 16, True)[1] + 1, fullgraph=True
    )
    given = normal(5, 80, dtype=torch.bfloat16)
    assert torch.equal(compiled(given, one(100.0)), tunable_fp4_quantize(given * 2, one(100.0), 16, True)[1] + 1)


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
def test_one_graph_for_any_number_of_rows(swizzled: bool, per_row: bool) -> None:
    torch._dynamo.reset()
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def run(given: Tensor, scale: Tensor) -> list[Tensor]:
        return tunable_fp4_quantize(given, scale, 16, swizzled)

    compiled = torch.compile(run, fullgraph=True, backend=counted, dynamic=True)
    for rows in (3, 127, 128, 300):
        given, scale = normal(rows, 80), torch.full((rows,), 100.0) if per_row else one(100.0)
        for seen, wanted in zip(compiled(given, scale), run(given, scale), strict=True):
            assert torch.equal(seen, wanted)
    assert counted.frame_count == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("swizzled", [False, True])
def test_the_call_goes_the_direct_way(dtype: torch.dtype, swizzled: bool) -> None:
    for op in (tunable_fp4_quantize, torch.ops.trtllm.tunable_fp4_quantize):
        assert dutyfree.explain(op, normal(5, 64).to(dtype), one(1.0), 16, swizzled).path == "direct"


# --- what no scale can be


@pytest.mark.parametrize("g", [float("inf"), float("-inf"), float("nan"), -100.0, 0.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_targets_agree_on_scales_that_make_no_sense(dtype: torch.dtype, g: float) -> None:
    given = normal(4, 512).to(dtype)
    given[1] = 0
    given[2, 100:140] = 0
    results = []
    for name in nvfp4.available_targets():
        with nvfp4.force_target(name):
            results.append(tunable_fp4_quantize(given, one(g)))
    for values, scales in results[1:]:
        assert torch.equal(values, results[0][0])
        assert torch.equal(scales, results[0][1])


def test_the_global_scale_of_tiny_numbers_is_finite() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert global_scale(torch.full((2, 16), 1e-38, dtype=dtype)).isfinite().all()


def test_the_global_scale_of_e4m3() -> None:
    given = normal(4, 32)
    given[0, 0] = 4.0
    assert global_scale(given.to(torch.float8_e4m3fn)).item() == 2688 / 4
