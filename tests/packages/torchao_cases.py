"""A call of every operator that torchao registers on a machine without CUDA and Triton."""

import torch
import torchao.prototype.moe_training.kernels.mxfp8.quant
import torchao.prototype.quant_logger
import torchao.prototype.quantization.codebook_coreml.codebook_ops
import torchao.prototype.spinquant.hadamard_utils
import torchao.quantization.pt2e.reference_representation_rewrite
import torchao.quantization.quantize_.workflows.float8.float8_sparse_2x4_1d_data_1d_metadata_tensor
import torchao.sparsity.blocksparse  # noqa: F401
from before_and_after import Case
from torch import Tensor

from dutyfree.check.outcome import Arguments, call

NAMESPACES = "torchao", "ao", "blocksparse", "float8_sparse", "quant", "quant_logger"


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def integers(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int8) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def scales(*shape: int) -> Tensor:
    return normal(*shape).abs() + 0.1


def zero_points(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def block_sparse() -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values of a [4, 4] matrix of which two [2, 2] blocks are not zero."""
    return torch.tensor([0, 1, 2]), torch.tensor([1, 0]), normal(2, 2, 2)


def linear_4_bit() -> Arguments:
    return call(normal(2, 8), 1e-6, integers(-8, 8, 3, 8), scales(3, 2), zero_points(3, 2), normal(3), [1, 4])


def sparse_int8() -> Arguments:
    rows, columns, _values = block_sparse()
    return call(rows, columns, integers(-9, 9, 2, 2, 2), integers(-9, 9, 4, 4), scales(4), scales(4))


def stacked_experts() -> Arguments:
    return call(torch.tensor([4]), normal(4, 16), scales(1))


def sparse_float8() -> Arguments:
    return call(normal(2, 8), normal(4, 8), None, torch.tensor(1.0), 4, 4)


def attention_8_bit() -> Arguments:
    return call(*(integers(0, 9, 1, 2, 3, 8, dtype=torch.uint8) for _ in range(3)), scale=0.3)


# They run on a CPU. Kernels under CompositeImplicitAutograd serve autograd's keys too, so that those calls stay direct
# with a gradient; kernels under CompositeExplicitAutograd leave it to PyTorch's fallback for autograd.
RUNNING = [
    Case(
        "torchao::choose_qparams_affine",
        lambda: call(normal(4, 8), "ASYMMETRIC", [1, 4], torch.int8, -128, 127, eps=1e-6),
        gradient_path="direct",
    ),
    Case(
        "torchao::quantize_affine",
        lambda: call(normal(4, 8), [1, 8], scales(4), zero_points(4), torch.int8, -128, 127),
        gradient_path="direct",
    ),
    Case(
        "torchao::dequantize_affine",
        lambda: call(integers(-9, 9, 4, 8), [1, 8], scales(4), zero_points(4), torch.int8),
        gradient_path="direct",
    ),
    Case("torchao::choose_scale_float8", lambda: call(normal(4, 8), [1, 8], hp_value_lb=0.5), gradient_path="direct"),
    Case(
        "torchao::quantize_affine_float8_non_decomposed",
        lambda: call(normal(4, 8), scales(4, 1)),
        gradient_path="boxed",
    ),
    Case(
        "torchao::dequantize_affine_float8_non_decomposed",
        lambda: call(normal(4, 8).to(torch.float8_e4m3fn), scales(4, 1), output_dtype=torch.bfloat16),
        gradient_path="boxed",
    ),
    Case("torchao::reference_dqlinear_int4", linear_4_bit, gradient_path="direct"),
    Case("blocksparse::bsr_to_dense", lambda: call(*block_sparse(), 4, 4)),
    Case(
        "quant::dequantize_codebook",
        lambda: call(integers(0, 4, 4, 8, dtype=torch.uint8).int(), normal(1, 2, 4, 1), 2, [4, 4]),
        gradient_path="direct",
    ),
    Case("quant_logger::log_tensor", lambda: call(normal(4, 8), "block.weight", "linear", "act", extra="M, K")),
]

# Their bodies raise: they need CUDA, Triton, mslk, cutlass' Python package or coremltools.
RAISING = [
    Case("torchao::hadamard_transform", lambda: call(normal(4, 8), 0.5), raises="NameError"),
    Case("blocksparse::int_addmm", sparse_int8, raises="AssertionError"),
    # It asserts that there is no bias, and its schema that there is one.
    Case("blocksparse::addmm", lambda: call(normal(4, 4), *block_sparse(), 4, 4, normal(4)), raises="AssertionError"),
    Case("float8_sparse::fp8_sparse_mm", sparse_float8, raises="NotImplementedError"),
    Case(
        "quant::choose_qparams_and_quantize_codebook_coreml",
        lambda: call(normal(4, 8), torch.uint4, [4, 4]),
        raises="ModuleNotFoundError",
        gradient_path="direct",
    ),
    Case("ao::mslk_calculate_group_max", lambda: call(normal(4, 8), torch.tensor([2, 2])), raises="AssertionError"),
    Case("ao::mslk_quantize_nvfp4", lambda: call(normal(4, 16)), raises="AssertionError"),
    Case("ao::mslk_quantize_nvfp4_stacked", stacked_experts, raises="AssertionError"),
    Case("torchao::mxfp8_quantize_2d_1x32_cutedsl", lambda: call(normal(32, 32)), raises="ImportError"),
    Case("torchao::mxfp8_quantize_2d_32x1_cutedsl", lambda: call(normal(32, 32)), raises="ImportError"),
    Case("torchao::mxfp8_quantize_3d_cutedsl", lambda: call(normal(2, 32, 32)), raises="ImportError"),
    Case("torchao::mxfp8_quantize_2d_1x32_flydsl", lambda: call(normal(32, 32)), raises="AssertionError"),
    Case("torchao::mxfp8_quantize_2d_32x1_flydsl", lambda: call(normal(32, 32)), raises="AssertionError"),
    Case("torchao::mxfp8_quantize_3d_flydsl", lambda: call(normal(2, 32, 32)), raises="AssertionError"),
]


def without_kernel(name: str, *args: object, **kwargs: object) -> Case:
    return Case(f"torchao::{name}", lambda: call(*args, **kwargs), "boxed", "NotImplementedError", "boxed")


# Defined without a kernel for any device: those are in libraries that the wheel for CPUs lacks.
WITHOUT_KERNEL = [
    without_kernel("qscaled_dot_product", *attention_8_bit().args, scale=0.3),
    without_kernel("da8w4_linear_prepack_cpu", integers(0, 9, 32, 64), scales(32, 1), zero_points(32, 1)),
    without_kernel(
        "da8w4_linear_cpu",
        *(integers(0, 9, 2, 8, dtype=torch.uint8), scales(2), zero_points(2)),
        *(integers(0, 9, 4, 8, dtype=torch.uint8), scales(4), zero_points(4), zero_points(4)),
        *(None, torch.float32),
    ),
    without_kernel(
        "_scaled_embedding_bag",
        *(integers(0, 9, 4, 8), torch.tensor([0, 1]), torch.tensor([0, 2]), scales(1), 1.0, 0, True, torch.float32),
    ),
    without_kernel("float8_linear_prepack_cpu", normal(4, 8).to(torch.float8_e4m3fn), scales(4)),
    without_kernel("float8_linear_cpu", normal(2, 8), scales(2), normal(4, 8), scales(4), None, torch.float32),
    without_kernel("mx_fp8_bf16", normal(2, 8), normal(8, 2), scales(2), scales(2)),
    without_kernel(
        "rowwise_scaled_linear_sparse_cutlass_f8f8",
        *(normal(2, 8), scales(2), normal(4, 8), normal(4, 8), scales(4)),
        out_dtype=torch.bfloat16,
    ),
    without_kernel("to_sparse_semi_structured_cutlass_sm9x_f8", normal(4, 8).to(torch.float8_e4m3fn)),
    without_kernel("swizzle_mm", normal(2, 8), normal(8, 2), False, True),
    without_kernel("swizzle_scaled_mm", normal(2, 8), normal(8, 2), False, True, scales(2), scales(2)),
    without_kernel("mx_block_rearrange_2d_M_groups", normal(2, 8), torch.tensor([2], dtype=torch.int32), 4),
]

CASES = [*RUNNING, *RAISING, *WITHOUT_KERNEL]
