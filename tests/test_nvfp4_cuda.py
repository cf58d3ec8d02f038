"""NVFP4 on CUDA tensors: the same bits as on the CPU, products as exact arithmetic has them.

Without a GPU: the library of kernels is built for the GPUs that it is meant for, loads, and says what is missing.
"""

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dutyfree
from dutyfree.ops import nvfp4

LIBRARY = Path(dutyfree.__file__).parent / "libdutyfree_nvfp4_cuda.so"
NOT_BUILT = "the library of CUDA kernels is not built here: `make cuda` builds it"

needs_library = pytest.mark.skipif(
    not LIBRARY.exists() and os.environ.get("DUTYFREE_REQUIRE_CUDA_LIBRARY") != "1", reason=NOT_BUILT
)
cuda = pytest.mark.cuda

DTYPES = [torch.float16, torch.bfloat16, torch.float8_e4m3fn]


def matrix(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    """Normal numbers of several magnitudes, a row of zeros among them."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=random) * torch.randint(-4, 5, shape, generator=random).float().exp2()
    if x.numel():
        x.view(-1, shape[-1])[-1] = 0
    return x.to(dtype)


def quantized(x: Tensor, swizzled: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    scale = nvfp4.global_scale(x.float())
    values, scale_factors = nvfp4.tunable_fp4_quantize(x, scale, 16, swizzled)
    return values, scale_factors, scale


@cuda
@needs_library
@pytest.mark.parametrize("swizzled", [False, True], ids=["linear", "swizzled"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 16), (5, 48), (128, 128), (130, 7168), (2, 3, 80), (0, 64), (4096, 256)], ids=str
)
def test_quantized_bits_are_those_of_the_cpu(shape: tuple[int, ...], dtype: torch.dtype, swizzled: bool) -> None:
    x = matrix(*shape, dtype=dtype)
    scale = nvfp4.global_scale(x.float())
    expected = nvfp4.tunable_fp4_quantize(x, scale, 16, swizzled)
    actual = nvfp4.tunable_fp4_quantize(x.cuda(), scale.cuda(), 16, swizzled)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.device.type == "cuda"
        assert torch.equal(ours.cpu(), theirs)


@cuda
@needs_library
def test_infinities_nans_and_a_scale_for_each_row() -> None:
    x = matrix(40, 64)
    x[3, 5], x[4, 7], x[5, 1], x[6] = float("nan"), float("inf"), -float("inf"), float("nan")
    scale = torch.linspace(1e-5, 300, 40)
    expected = nvfp4.tunable_fp4_quantize(x, scale)
    actual = nvfp4.tunable_fp4_quantize(x.cuda(), scale.cuda())
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(actual, expected, strict=True))


@cuda
@needs_library
def test_a_view_that_begins_at_any_element() -> None:
    x = matrix(1, 16 * 9 + 1).flatten()[1:].view(9, 16)
    on_gpu = torch.empty(16 * 9 + 1, dtype=x.dtype, device="cuda")[1:].view(9, 16).copy_(x)
    scale = nvfp4.global_scale(x)
    expected = nvfp4.tunable_fp4_quantize(x, scale)
    actual = nvfp4.tunable_fp4_quantize(on_gpu, scale.cuda())
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(actual, expected, strict=True))


@cuda
@needs_library
@pytest.mark.parametrize("swizzled", [False, True], ids=["linear", "swizzled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dequantized_numbers_are_those_of_the_cpu(dtype: torch.dtype, swizzled: bool) -> None:
    values, scale_factors, scale = quantized(matrix(130, 80), swizzled)
    expected = nvfp4.fp4_dequantize(values, scale_factors, scale, dtype, swizzled)
    actual = nvfp4.fp4_dequantize(values.cuda(), scale_factors.cuda(), scale.cuda(), dtype, swizzled)
    assert torch.equal(actual.cpu(), expected)


def product(m: int, n: int, k: int) -> tuple[list[Tensor], Tensor]:
    """Arguments of nvfp4_gemm, on the GPU, and the exact product, on the CPU."""
    act, act_sf, act_scale = quantized(matrix(m, k, seed=1))
    weight, weight_sf, weight_scale = quantized(matrix(n, k, seed=2))
    one = torch.ones(1)
    exact = (
        nvfp4.fp4_dequantize(act, act_sf, one, torch.float32, True).double()
        @ nvfp4.fp4_dequantize(weight, weight_sf, one, torch.float32, True).double().t()
    )
    alpha = 1 / (act_scale * weight_scale)
    return [tensor.cuda() for tensor in (act, weight, act_sf, weight_sf, alpha)], exact * alpha.double()


def backends_on_gpu() -> list[str]:
    blackwell = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (10, 0)
    return ["cublaslt", "bf16_mm"] if blackwell else ["bf16_mm"]


@cuda
@needs_library
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 192, 128), (4, 192, 128), (8, 2112, 7168), (256, 128, 512)])
def test_products_are_those_of_exact_arithmetic(m: int, n: int, k: int, biased: bool, dtype: torch.dtype) -> None:
    tensors, exact = product(m, n, k)
    for bias_dtype in {dtype, torch.float32} if biased else {None}:
        bias = None if bias_dtype is None else torch.linspace(-1, 1, n).to(bias_dtype)
        expected = exact if bias is None else exact + bias.double()
        for backend in backends_on_gpu():
            on_gpu = None if bias is None else bias.cuda()
            actual = nvfp4.nvfp4_gemm(*tensors, dtype, allowed_backends=backend, bias=on_gpu)
            assert actual.dtype is dtype
            # One rounding to the type; float32 sums in some order.
            torch.testing.assert_close(
                actual.double().cpu(),
                expected,
                rtol=torch.finfo(dtype).eps,
                atol=1e-5 * float(expected.abs().max()),
            )


@cuda
@needs_library
def test_a_backend_that_the_gpu_lacks_is_an_error_that_lists_what_it_has() -> None:
    tensors, _ = product(1, 24, 16)
    with pytest.raises(ValueError, match="which has bf16_mm"):
        nvfp4.nvfp4_gemm(*tensors, torch.bfloat16, allowed_backends="cublaslt,cutlass")
    assert nvfp4.nvfp4_gemm(*tensors, torch.bfloat16).shape == (1, 24)


@cuda
@needs_library
def test_both_operators_record_into_a_cuda_graph() -> None:
    x = matrix(4, 128).cuda()
    weight, weight_sf, weight_scale = (tensor.cuda() for tensor in quantized(matrix(192, 128, seed=2)))
    scale = nvfp4.global_scale(x)
    alpha = 1 / (scale * weight_scale)

    def layer() -> Tensor:
        values, scale_factors = nvfp4.tunable_fp4_quantize(x, scale, 16, True)
        return nvfp4.nvfp4_gemm(values, weight, scale_factors, weight_sf, alpha, torch.bfloat16)

    layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = layer()
    x.mul_(0.5)
    graph.replay()
    assert torch.equal(recorded, layer())


# --- without a GPU --------------------------------------------------------------------------------------------------


class Quantize(ctypes.Structure):
    """DutyfreeNvfp4Quantize of csrc/nvfp4/cuda/kernels.h."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("global_scale", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("scale_factors", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
        ("device", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("scale_per_row", ctypes.c_int),
        ("swizzled", ctypes.c_int),
    )


@pytest.fixture
def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(LIBRARY))
    loaded.dutyfree_nvfp4_error_text.restype = ctypes.c_char_p
    return loaded


def error_of(library: ctypes.CDLL, **arguments: int) -> str:
    call = Quantize(**arguments)
    return library.dutyfree_nvfp4_error_text(library.dutyfree_nvfp4_quantize(ctypes.byref(call))).decode()


@needs_library
def test_the_library_has_machine_code_for_hopper_and_blackwell() -> None:
    """And PTX for other GPUs. The architectures' names stand in the code for each."""
    content = LIBRARY.read_bytes()
    assert b"sm_90a" in content
    assert b"sm_100a" in content


@needs_library
def test_the_library_exports_its_interface_alone() -> None:
    """Its copy of the CUDA runtime must not be mixed up with torch's."""
    symbols = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
    assert {line.split()[-1] for line in symbols.splitlines()} == {
        "dutyfree_nvfp4_interface",
        "dutyfree_nvfp4_error_text",
        "dutyfree_nvfp4_capability",
        "dutyfree_nvfp4_quantize",
        "dutyfree_nvfp4_dequantize",
    }


@needs_library
def test_arguments_that_no_kernel_takes_are_refused(library: ctypes.CDLL) -> None:
    assert error_of(library, rows=1, columns=8) == "invalid argument"
    assert error_of(library, rows=-1, columns=16) == "invalid argument"
    assert error_of(library, rows=1, columns=16, dtype=9) == "invalid argument"
    assert error_of(library, rows=1, columns=16, input=1 << 20 | 2) == "misaligned address"


@needs_library
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_calls_are_an_error(library: ctypes.CDLL) -> None:
    no_gpu = ("CUDA driver version is insufficient for CUDA runtime version", "no CUDA-capable device is detected")
    assert error_of(library, rows=1, columns=16) in no_gpu
    capability = ctypes.c_int()
    error = library.dutyfree_nvfp4_capability(0, ctypes.byref(capability))
    assert library.dutyfree_nvfp4_error_text(error).decode() in no_gpu
