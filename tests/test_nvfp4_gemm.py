"""``trtllm::nvfp4_gemm`` on a CPU: every backend, compared with float64 and with what decoding to bfloat16 gives.

Weights that change, go away or come back at the same address are in test_nvfp4_weights.py.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import dutyfree
import nvfp4_oracle as oracle
from dutyfree.ops import nvfp4, nvfp4_gemm, tunable_fp4_quantize
from nvfp4_cases import OPCHECKED, REFUSED, Operands, normal, one, operands

BACKENDS = nvfp4.backends()
CUDA = ["cutlass", "cublaslt", "cuda_core"]
DEFAULT = ",".join(CUDA)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Half a unit in the last place of 1.0.
UNIT = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
ONE = 0x38  # the e4m3 scale 1.0

SMALL = [
    (1, 1, 16), (1, 7, 48), (3, 1, 128), (2, 30, 16), (5, 192, 48), (16, 7, 192), (17, 30, 128), (64, 192, 192),
    (129, 130, 64), (1, 192, 128), (4, 192, 128), (31, 8, 80), (33, 16, 2064), (7, 257, 1040),
]  # fmt: skip
LARGE = [
    (1, 4096, 7168), (4, 7168, 16384), (8, 2112, 7168), (1024, 1024, 1024), (256, 128, 512), (4096, 192, 128),
    (2048, 30, 48), (100, 1000, 2000),
]  # fmt: skip
# The portable kernel multiplies one number at a time.
ON_LARGE = [
    (shape, backend)
    for shape in LARGE
    for backend in (DEFAULT, *BACKENDS)
    if backend != "portable" or np.prod(shape) < 2**28
]
large_operands = functools.lru_cache(maxsize=1)(operands)


def call(of: Operands, dtype: torch.dtype, backend: str = DEFAULT, bias: Tensor | None = None) -> Tensor:
    result: Tensor = nvfp4_gemm(*of.tensors, dtype, 0, backend, None, bias)
    assert result.dtype == dtype
    assert result.shape == (of.act.shape[0], of.weight.shape[0])
    assert result.is_contiguous()
    return result


def errors(found: Tensor, exact: oracle.Floats) -> oracle.Floats:
    return np.abs(found.double().numpy() - exact)


def check(
    of: Operands, dtype: torch.dtype, backend: str, columns: Any = slice(None), bias: Tensor | None = None
) -> None:
    """Compares the columns asked for with float64 in two ways: with a bound that holds for any order of a float32 sum
    (K + 4 roundings, and that of the result), and with the errors that decoding to bfloat16 makes."""
    found = call(of, dtype, backend, bias)[:, columns]
    bias = None if bias is None else bias[columns]
    exact, magnitude = of.exact(columns, None if bias is None else bias.double().numpy())
    seen = errors(found, exact)
    sum_error = (of.act.shape[1] * 2 + 4) * 2**-24 * magnitude
    # torch.mm rounds to bfloat16 before alpha and bias.
    rounding = UNIT[dtype] if backend != "bf16_mm" else UNIT[dtype] + 1.01 * UNIT[torch.bfloat16]
    scale = np.abs(exact) if backend != "bf16_mm" or bias is None else magnitude
    smallest = 2**-25 if dtype == torch.float16 else 0  # half of float16's smallest number
    assert (seen <= sum_error + rounding * scale + smallest).all()
    # Ours may round in another order (hence 5 %), and theirs may be right by chance where there is little to sum.
    theirs = errors(of.decoded_to_bfloat16(columns, bias).to(dtype), exact)
    chance = 2**-22 * magnitude
    assert seen.max(initial=0) <= 1.05 * theirs.max(initial=0) + chance.max(initial=0)
    assert seen.mean() <= 1.05 * theirs.mean() + chance.mean()


# --- shapes, dtypes, backends


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", [DEFAULT, *BACKENDS])
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_small_products(shape: tuple[int, int, int], backend: str, dtype: torch.dtype) -> None:
    check(operands(*shape), dtype, backend)


@pytest.mark.parametrize(("shape", "backend"), ON_LARGE, ids=str)
def test_large_products(shape: tuple[int, int, int], backend: str) -> None:
    # All is computed and forty columns are compared: float64 of the rest would take most of the suite's time.
    columns = np.unique(np.linspace(0, shape[1] - 1, 40).astype(int))
    check(large_operands(*shape), torch.float32 if backend == DEFAULT else torch.bfloat16, backend, columns)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 96, 127, 128, 200])
def test_any_number_of_rows(m: int, backend: str) -> None:
    check(operands(m, 40, 96), torch.float32, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [*range(1, 36), 63, 65, 127, 129])
def test_any_number_of_columns(n: int, backend: str) -> None:
    check(operands(3, n, 96), torch.float32, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [*range(16, 336, 16), 1008, 1024, 1040])
def test_any_number_of_blocks(k: int, backend: str) -> None:
    check(operands(5, 20, k), torch.float32, backend)


@pytest.mark.parametrize("shape", [(1, 192, 128), (17, 30, 192), (256, 128, 512)], ids=str)
def test_every_backend_agrees_with_every_other(shape: tuple[int, int, int]) -> None:
    of = operands(*shape)
    results = {backend: call(of, torch.float32, backend) for backend in BACKENDS}
    for first in BACKENDS:
        for second in BACKENDS:
            torch.testing.assert_close(results[first], results[second], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("backend", [DEFAULT, *BACKENDS])
@pytest.mark.parametrize("shape", [(0, 192, 128), (0, 7, 16)], ids=str)
def test_no_rows(shape: tuple[int, int, int], backend: str) -> None:
    for dtype in DTYPES:
        call(operands(*shape), dtype, backend)
        call(operands(*shape), dtype, backend, torch.ones(shape[1], dtype=dtype))


def test_after_quantizing_by_the_operator() -> None:
    x, w = normal(33, 256), normal(48, 256, seed=1)
    (a, asf), (b, bsf) = (tunable_fp4_quantize(t, one(600.0), 16, True) for t in (x, w))
    result = nvfp4_gemm(a, b, asf, bsf, one(1 / 600.0**2), torch.float32)
    error = (result - x @ w.t()).norm() / (x @ w.t()).norm()
    assert 0.01 < error < 0.2  # two roundings of about 10 % each element, independent of each other


# --- alpha and bias


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("alpha", [1.0, -2.5, 1e-6, 3e5])
@pytest.mark.parametrize("m", [1, 16])
def test_alpha(alpha: float, backend: str, m: int) -> None:
    of = operands(m, 30, 128)
    of = Operands(of.act, of.act_scales, of.weight, of.weight_scales, float(np.float32(alpha)))
    check(of, torch.float32, backend)
    check(of, torch.bfloat16, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_alpha_of_zero_and_nan(backend: str) -> None:
    a, w, asf, wsf, _ = operands(5, 30, 128).tensors
    assert not nvfp4_gemm(a, w, asf, wsf, one(0.0), torch.float32, 0, backend).any()
    assert nvfp4_gemm(a, w, asf, wsf, one(float("nan")), torch.float32, 0, backend).isnan().all()


@pytest.mark.parametrize("alpha", [torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([[0.5]])], ids=str)
def test_forms_of_alpha(alpha: Tensor) -> None:
    a, w, asf, wsf, _ = operands(5, 30, 128).tensors
    wanted = nvfp4_gemm(a, w, asf, wsf, one(0.5), torch.float32)
    assert torch.equal(nvfp4_gemm(a, w, asf, wsf, alpha, torch.float32), wanted)


def test_alpha_is_read_in_each_call() -> None:
    a, w, asf, wsf, alpha = operands(5, 30, 128).tensors
    before = nvfp4_gemm(a, w, asf, wsf, alpha, torch.float32)
    alpha.mul_(2)
    assert torch.equal(nvfp4_gemm(a, w, asf, wsf, alpha, torch.float32), before * 2)


@pytest.mark.parametrize("backend", [DEFAULT, *BACKENDS])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 7, 48), (16, 30, 128), (129, 192, 64)], ids=str)
def test_a_bias(shape: tuple[int, int, int], dtype: torch.dtype, backend: str) -> None:
    check(operands(*shape), dtype, backend, bias=normal(shape[1], seed=5).to(dtype))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_alone(backend: str) -> None:
    of = operands(5, 30, 128)
    of = Operands(np.zeros_like(of.act), of.act_scales, of.weight, of.weight_scales)
    bias = normal(30, dtype=torch.bfloat16)
    assert torch.equal(call(of, torch.bfloat16, backend, bias), bias.expand(5, 30))


# --- what can be exact is


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_pair_of_codes_in_every_lane(backend: str) -> None:
    # Row 16 · lane + code has that code in that lane, and zeros elsewhere.
    codes = np.zeros((256, 16), np.uint8)
    codes[np.arange(256), np.arange(256) // 16] = np.arange(256) % 16
    values, scales = oracle.pack(codes), np.full((256, 1), ONE, np.uint8)
    of = Operands(values, scales, values, scales)
    assert (call(of, torch.float32, backend).double().numpy() == of.exact()[0]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_pair_of_scales(backend: str) -> None:
    # Ones times ones: 16 · a · w is exact in bfloat16. 0x7F is NaN.
    values, scales = np.full((128, 8), 0x22, np.uint8), np.arange(128, dtype=np.uint8)[:, None]
    of = Operands(values, scales, values, scales)
    np.testing.assert_array_equal(call(of, torch.float32, backend).double().numpy(), of.exact()[0])


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "bf16_mm"])
@pytest.mark.parametrize("shape", [(1, 30, 4096), (16, 7, 192), (64, 192, 1024)], ids=str)
def test_sums_that_float32_holds_are_exact(shape: tuple[int, int, int], backend: str) -> None:
    m, n, k = shape
    of = operands(m, n, k)
    of = Operands(of.act, np.full((m, k // 16), ONE, np.uint8), of.weight, np.full((n, k // 16), ONE, np.uint8))
    assert (call(of, torch.float32, backend).double().numpy() == of.exact()[0]).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("act", "weight"), [(7, 7), (15, 7), (7, 15), (15, 15)])
@pytest.mark.parametrize("m", [1, 16])
def test_the_largest_sums(m: int, act: int, weight: int, backend: str) -> None:
    k = 16384
    of = Operands(
        np.full((m, k // 2), act * 17, np.uint8), np.full((m, k // 16), ONE, np.uint8),
        np.full((9, k // 2), weight * 17, np.uint8), np.full((9, k // 16), ONE, np.uint8),
    )  # fmt: skip
    assert (call(of, torch.float32, backend) == 36 * k * (1 if act == weight else -1)).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(1, 30, 128), (16, 7, 192)], ids=str)
def test_minus_zero_counts_as_zero(shape: tuple[int, int, int], backend: str) -> None:
    def minus(values: oracle.Bytes) -> oracle.Bytes:
        codes = oracle.unpack(values)
        return oracle.pack(np.where(codes == 0, np.uint8(8), codes))

    def plus(values: oracle.Bytes) -> oracle.Bytes:
        codes = oracle.unpack(values)
        return oracle.pack(np.where(codes == 8, np.uint8(0), codes))

    of = operands(*shape)
    first, second = (
        Operands(change(of.act), of.act_scales, change(of.weight), of.weight_scales) for change in (minus, plus)
    )
    assert (call(first, torch.float32, backend) == call(second, torch.float32, backend)).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("m", [1, 16])
def test_a_scale_of_zero_drops_its_block(backend: str, m: int) -> None:
    of = operands(m, 30, 192)
    zeroed = Operands(of.act, of.act_scales.copy(), of.weight, of.weight_scales.copy())
    zeroed.act_scales[0, 3] = 0
    zeroed.weight_scales[7, 5] = 0
    check(Operands(zeroed.act, zeroed.act_scales, zeroed.weight, zeroed.weight_scales), torch.float32, backend)
    nothing = Operands(of.act, np.zeros_like(of.act_scales), of.weight, of.weight_scales)
    assert not call(nothing, torch.float32, backend).any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("m", [2, 17])
@pytest.mark.parametrize("k", [16, 192])
def test_a_scale_of_nan_reaches_its_row_or_column_only(backend: str, m: int, k: int) -> None:
    of = operands(m, 30, k)
    wanted = call(of, torch.float32, backend)
    act_scales, weight_scales = of.act_scales.copy(), of.weight_scales.copy()
    act_scales[1, -1] = weight_scales[29, 0] = 0x7F
    found = call(Operands(of.act, act_scales, of.weight, weight_scales, of.alpha), torch.float32, backend)
    nan = torch.zeros(m, 30, dtype=torch.bool)
    nan[1] = nan[:, 29] = True
    assert torch.equal(found.isnan(), nan)
    assert torch.equal(found[~nan], wanted[~nan])


@pytest.mark.parametrize("backend", BACKENDS)
def test_saturated_and_smallest_scales(backend: str) -> None:
    check(operands(16, 30, 192, low=0x7E, high=0x7F), torch.float32, backend)
    check(operands(16, 30, 192, low=0, high=0x7F), torch.float32, backend)
    check(operands(16, 30, 192, low=1, high=8), torch.float32, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(1, 7, 48), (130, 30, 80)], ids=str)
def test_padding_of_scales_is_not_read(shape: tuple[int, int, int], backend: str) -> None:
    m, n, k = shape
    of = operands(*shape)
    a, w, asf, wsf, alpha = of.tensors
    padded = []
    for scales, rows in ((asf, m), (wsf, n)):
        flat = np.full(scales.numel(), 0x7F, np.uint8)
        flat[oracle.offsets(rows, k // 16)] = oracle.unswizzle(scales.numpy(), rows, k // 16)
        padded.append(torch.from_numpy(flat))
    found = nvfp4_gemm(a, w, padded[0], padded[1], alpha, torch.float32, 0, backend)
    assert torch.equal(found, call(of, torch.float32, backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(1, 192, 2048), (33, 130, 1040)], ids=str)
def test_a_call_gives_the_same_bits_each_time(shape: tuple[int, int, int], backend: str) -> None:
    of = operands(*shape)
    first = call(of, torch.float32, backend)
    assert all(torch.equal(call(of, torch.float32, backend), first) for _ in range(5))


@pytest.mark.parametrize("change", [
    lambda t: t.repeat(2, 2)[: t.shape[0], : t.shape[1]], lambda t: t.t().contiguous().t(),
], ids=["sliced", "transposed"])  # fmt: skip
@pytest.mark.parametrize("at", [0, 1])
def test_strided_values_are_read_right_or_refused(change: Callable[[Tensor], Tensor], at: int) -> None:
    of = operands(5, 30, 128)
    wanted = call(of, torch.float32)
    given = list(of.tensors)
    given[at] = change(given[at])
    assert not given[at].is_contiguous()
    try:
        found = nvfp4_gemm(*given, torch.float32)
    except REFUSED as error:
        assert "contiguous" in str(error)
    else:
        assert torch.equal(found, wanted)


# --- threads


@pytest.mark.parametrize("backend", [DEFAULT, *BACKENDS])
def test_many_threads_at_once(backend: str) -> None:
    nvfp4.forget_packed_weights()
    cases = [operands(m, 60, 256, seed=seed) for seed in range(4) for m in (1, 16)]
    # The weights of a pair are one tensor, so that threads meet at it when none has packed it yet.
    given = [list(of.tensors) for of in cases]
    for first, second in zip(given[0::2], given[1::2], strict=True):
        second[1], second[3] = first[1], first[3]
    barrier = threading.Barrier(8)
    results: list[list[Tensor]] = [[] for _ in range(8)]

    def work(number: int) -> None:
        barrier.wait()
        for turn in range(40):
            arguments = given[(number + turn) % len(given)]
            results[number].append(nvfp4_gemm(*arguments, torch.float32, 0, backend))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = [nvfp4_gemm(*arguments, torch.float32, 0, backend) for arguments in given]
    for number, found in enumerate(results):
        assert len(found) == 40
        assert all(torch.equal(found[turn], wanted[(number + turn) % len(given)]) for turn in range(40))


# --- backends by name


def test_names_of_backends() -> None:
    assert set(nvfp4.available_targets()) <= set(BACKENDS)
    assert "bf16_mm" in BACKENDS
    assert set(BACKENDS) <= {"portable", "avx2", "avx512_vnni", "avx512_bf16", "bf16_mm"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["{}", "cutlass,{}", "{},cublaslt", "cutlass,cublaslt,cuda_core,{}"])
def test_names_of_cuda_backends_are_skipped(backend: str, form: str) -> None:
    of = operands(5, 30, 128)
    assert torch.equal(call(of, torch.float32, form.format(backend)), call(of, torch.float32, backend))


def test_several_backends() -> None:
    check(operands(5, 30, 128), torch.float32, ",".join(BACKENDS))


@pytest.mark.parametrize("names", ["cutlass", "cublaslt", "cuda_core", "cutlass,cublaslt", "cuda_core,cutlass"])
def test_names_of_cuda_backends_only(names: str) -> None:
    with pytest.raises(REFUSED) as caught:
        call(operands(5, 30, 128), torch.float32, names)
    assert "nvfp4_gemm" in str(caught.value)
    assert all(backend in str(caught.value) for backend in BACKENDS)


@pytest.mark.parametrize("names", ["cutlas", "portable,fast", "fast,slow", "PORTABLE", "cutlass;portable"])
def test_names_of_no_backend(names: str) -> None:
    with pytest.raises(ValueError, match="nvfp4_gemm") as caught:
        call(operands(5, 30, 128), torch.float32, names)
    wrong = [name for name in names.split(",") if name not in (*BACKENDS, *CUDA)]
    assert all(name in str(caught.value) for name in (*wrong, *BACKENDS, *CUDA))


def test_no_backend() -> None:
    with pytest.raises(ValueError, match=r"nvfp4_gemm.*allowed_backends"):
        call(operands(5, 30, 128), torch.float32, "")


# --- errors


def changed(at: int, change: Callable[[Tensor], Tensor]) -> Callable[[], list[Any]]:
    def make() -> list[Any]:
        given: list[Any] = [*operands(5, 30, 128).tensors, torch.float32]
        given[at] = change(given[at])
        return given

    return make


def with_bias(bias: Tensor) -> Callable[[], list[Any]]:
    return lambda: [*operands(5, 30, 128).tensors, torch.float32, 0, DEFAULT, None, bias]


BAD: list[tuple[str, Callable[[], list[Any]], str]] = [
    ("act is float32", changed(0, lambda t: t.float()), "act_fp4"),
    ("act is int8", changed(0, lambda t: t.view(torch.int8)), "act_fp4"),
    ("act is rank 1", changed(0, lambda t: t.flatten()), "act_fp4"),
    ("act is rank 3", changed(0, lambda t: t[None]), "act_fp4"),
    ("weight is float32", changed(1, lambda t: t.float()), "weight"),
    ("weight is int64", changed(1, lambda t: t.long()), "weight"),
    ("weight is rank 1", changed(1, lambda t: t[0]), "weight"),
    ("weight is rank 3", changed(1, lambda t: t[None]), "weight"),
    ("weight has another K", changed(1, lambda t: t[:, :32].contiguous()), "weight"),
    ("act has another K", changed(0, lambda t: t[:, :32].contiguous()), "nvfp4_gemm"),
    ("act scales are float32", changed(2, lambda t: t.float()), "act_sf"),
    ("act scales are few", changed(2, lambda t: t[:-4]), "act_sf"),
    ("act scales are many", changed(2, lambda t: t.repeat(2)), "act_sf"),
    ("act scales are linear", changed(2, lambda t: t[:40]), "act_sf"),
    ("weight scales are float32", changed(3, lambda t: t.float()), "weight_scale"),
    ("weight scales are few", changed(3, lambda t: t[:-512]), "weight_scale"),
    ("weight scales are many", changed(3, lambda t: t.repeat(3)), "weight_scale"),
    ("weight scales are none", changed(3, lambda t: t[:0]), "weight_scale"),
    ("alpha is float64", changed(4, lambda t: t.double()), "alpha"),
    ("alpha is int64", changed(4, lambda t: t.long()), "alpha"),
    ("alpha is bfloat16", changed(4, lambda t: t.bfloat16()), "alpha"),
    ("two alphas", changed(4, lambda t: t.repeat(2)), "alpha"),
    ("no alpha", changed(4, lambda t: t[:0]), "alpha"),
    ("result is float64", changed(5, lambda t: torch.float64), "output_dtype"),
    ("result is int32", changed(5, lambda t: torch.int32), "output_dtype"),
    ("result is e4m3", changed(5, lambda t: torch.float8_e4m3fn), "output_dtype"),
    ("bias is short", with_bias(torch.ones(29)), "bias"),
    ("bias is long", with_bias(torch.ones(31)), "bias"),
    ("bias is a row", with_bias(torch.ones(5, 30)), "bias"),
    ("bias is int64", with_bias(torch.ones(30, dtype=torch.int64)), "bias"),
    ("act on meta", changed(0, lambda t: t.to("meta")), "meta"),
    ("weight on meta", changed(1, lambda t: t.to("meta")), "meta"),
    ("act scales on meta", changed(2, lambda t: t.to("meta")), "meta"),
    ("weight scales on meta", changed(3, lambda t: t.to("meta")), "meta"),
    ("alpha on meta", changed(4, lambda t: t.to("meta")), "meta"),
    ("bias on meta", with_bias(torch.ones(30, device="meta")), "meta"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "part"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
@pytest.mark.parametrize("op", [nvfp4_gemm, torch.ops.trtllm.nvfp4_gemm], ids=["ours", "torch.ops"])
def test_what_is_refused(op: Any, make: Callable[[], list[Any]], part: str) -> None:
    with pytest.raises(REFUSED) as caught:
        op(*make())
    assert "nvfp4_gemm" in str(caught.value)
    assert part in str(caught.value)


def test_a_k_of_half_a_block() -> None:
    eight = torch.zeros(5, 4, dtype=torch.uint8)
    with pytest.raises(REFUSED, match=r"nvfp4_gemm.*16"):
        nvfp4_gemm(eight, eight, torch.zeros(512).byte(), torch.zeros(512).byte(), one(1.0), torch.float32)


# --- fake kernel, torch.compile, opcheck


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 192, 128), (129, 30, 48), (0, 7, 16)], ids=str)
@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_shapes_without_data(kind: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    real = operands(*shape).tensors
    if kind == "fake":
        with FakeTensorMode() as mode:
            found = nvfp4_gemm(*(mode.from_tensor(tensor) for tensor in real), dtype)
    else:
        found = nvfp4_gemm(*(tensor.to("meta") for tensor in real), dtype)
    assert (found.shape, found.dtype) == ((shape[0], shape[1]), dtype)
    assert found.device.type == ("cpu" if kind == "fake" else "meta")
    assert found.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_opcheck(dtype: torch.dtype, bias: bool) -> None:
    given = (*operands(5, 30, 128).tensors, dtype)
    keywords = {"bias": torch.ones(30, dtype=dtype)} if bias else {}
    torch.library.opcheck(torch.ops.trtllm.nvfp4_gemm.default, given, keywords, test_utils=OPCHECKED)


@pytest.mark.parametrize("op", [nvfp4_gemm, torch.ops.trtllm.nvfp4_gemm], ids=["ours", "torch.ops"])
@pytest.mark.parametrize("bias", [False, True])
def test_compiled(op: Any, bias: bool) -> None:
    torch._dynamo.reset()
    b = torch.ones(30, dtype=torch.bfloat16) if bias else None

    def run(a: Tensor, w: Tensor, asf: Tensor, wsf: Tensor, alpha: Tensor) -> Tensor:
        result: Tensor = op(a, w, asf, wsf, alpha * 2, torch.bfloat16, bias=b) + 1
        return result

    given = operands(5, 30, 128).tensors
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(*given), run(*given))


def test_both_operators_compiled_by_inductor() -> None:
    torch._dynamo.reset()
    of = operands(5, 30, 128)
    _, w, _, wsf, alpha = of.tensors

    def run(x: Tensor, scale: Tensor) -> Tensor:
        values, scales = tunable_fp4_quantize(x * 2, scale, 16, True)
        result: Tensor = nvfp4_gemm(values, w, scales, wsf, alpha / scale, torch.float32)
        return torch.relu(result)

    given = (normal(5, 128), one(300.0))
    torch.testing.assert_close(torch.compile(run, fullgraph=True)(*given), run(*given))


def test_one_graph_for_any_number_of_rows() -> None:
    torch._dynamo.reset()
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    _, w, _, wsf, alpha = operands(5, 30, 128).tensors

    def run(x: Tensor, scale: Tensor) -> Tensor:
        values, scales = tunable_fp4_quantize(x, scale, 16, True)
        result: Tensor = nvfp4_gemm(values, w, scales, wsf, alpha, torch.float32)
        return result

    compiled = torch.compile(run, fullgraph=True, backend=counted, dynamic=True)
    for rows in (3, 128, 129, 300):
        assert torch.equal(compiled(normal(rows, 128), one(300.0)), run(normal(rows, 128), one(300.0)))
    assert counted.frame_count == 1


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_call_goes_the_direct_way(dtype: torch.dtype, bias: bool) -> None:
    given = (*operands(5, 30, 128).tensors, dtype)
    keywords = {"bias": torch.ones(30, dtype=dtype)} if bias else {}
    for op in (nvfp4_gemm, torch.ops.trtllm.nvfp4_gemm):
        assert dutyfree.explain(op, *given, **keywords).path == "direct"
