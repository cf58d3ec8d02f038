#include "nvfp4/cuda/backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cstdint>

#include "nvfp4/checks.h"
#include "nvfp4/cuda/kernels.h"
#include "nvfp4/cuda/library.h"
#include "nvfp4/format.h"
#include "torch_compat/cuda_stream.h"
#include "torch_compat/plain_keys.h"
#include "torch_compat/scaled_mm.h"

namespace dutyfree::nvfp4::cuda {

namespace {

int dtype_of(c10::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return kDutyfreeFloat32;
    case at::kHalf:
      return kDutyfreeFloat16;
    case at::kBFloat16:
      return kDutyfreeBFloat16;
    case at::kFloat8_e4m3fn:
      return kDutyfreeFloat8E4M3;
    default:
      TORCH_CHECK(false, "NVFP4 on CUDA does not know ", type,
                  ": float32, float16, bfloat16 or float8_e4m3fn is wanted");
  }
}

// The tensor, or a copy where it does not begin at such an address: a view into another one may begin at any element.
at::Tensor aligned(const at::Tensor& tensor, std::uintptr_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return address % bytes == 0 ? tensor : tensor.clone();
}

at::Tensor decode(const at::Tensor& values,
                  const at::Tensor& scale_factors,
                  const at::Tensor* global_scale,
                  c10::ScalarType dtype,
                  bool swizzled) {
  auto sizes = values.sizes().vec();
  sizes.back() *= 2;
  const at::Tensor output = at::empty(sizes, values.options().dtype(dtype));
  const at::Tensor source = aligned(values, 8);
  const DutyfreeNvfp4Dequantize call{
      .values = static_cast<const std::uint8_t*>(source.const_data_ptr()),
      .scale_factors = static_cast<const std::uint8_t*>(scale_factors.const_data_ptr()),
      .global_scale = global_scale != nullptr ? global_scale->const_data_ptr<float>() : nullptr,
      .output = output.mutable_data_ptr(),
      .rows = rows_of<std::int64_t>(values),
      .columns = sizes.back(),
      .stream = torch_compat::current_cuda_stream(values.device()),
      .device = values.device().index(),
      .dtype = dtype_of(dtype),
      .scale_per_row = global_scale != nullptr && global_scale->numel() != 1,
      .swizzled = swizzled,
  };
  const Library& kernels = library();
  kernels.check(kernels.dequantize(&call), "decoding NVFP4");
  return output;
}

at::Tensor gemm_by_bf16(const at::Tensor& act_fp4,
                        const at::Tensor& weight,
                        const at::Tensor& act_sf,
                        const at::Tensor& weight_scale) {
  const at::Tensor act = decode(act_fp4, act_sf, nullptr, at::kBFloat16, true);
  const at::Tensor dense = decode(weight, weight_scale, nullptr, at::kBFloat16, true);
  return at::mm(act, dense.t(), at::kFloat);
}

}  // namespace

std::vector<at::Tensor> quantize(const at::Tensor& input, const at::Tensor& input_scale, bool swizzled) {
  const std::int64_t rows = rows_of<std::int64_t>(input);
  const std::int64_t columns = input.size(-1);
  const std::int64_t blocks = columns / kBlock;
  auto sizes = input.sizes().vec();
  sizes.back() /= 2;
  const auto bytes = input.options().dtype(at::kByte);
  const at::Tensor values = at::empty(sizes, bytes);
  const at::Tensor scale_factors = at::empty({swizzled ? swizzled_size(rows, blocks) : rows * blocks}, bytes);
  const at::Tensor source = aligned(input, 16);
  const DutyfreeNvfp4Quantize call{
      .input = source.const_data_ptr(),
      .global_scale = input_scale.const_data_ptr<float>(),
      .values = values.mutable_data_ptr<std::uint8_t>(),
      .scale_factors = scale_factors.mutable_data_ptr<std::uint8_t>(),
      .rows = rows,
      .columns = columns,
      .stream = torch_compat::current_cuda_stream(input.device()),
      .device = input.device().index(),
      .dtype = dtype_of(input.scalar_type()),
      .scale_per_row = input_scale.numel() != 1,
      .swizzled = swizzled,
  };
  const Library& kernels = library();
  kernels.check(kernels.quantize(&call), "quantizing to NVFP4");
  return {values, scale_factors};
}

at::Tensor dequantize(const at::Tensor& values,
                      const at::Tensor& scale_factors,
                      const at::Tensor& global_scale,
                      c10::ScalarType dtype,
                      bool swizzled) {
  return decode(values, scale_factors, &global_scale, dtype, swizzled);
}

Backends backends_for(int capability, std::int64_t rows, std::int64_t columns) {
  const bool scaled_mm = capability >= 100 && rows % 16 == 0 && columns % 32 == 0;
  return bit(Backend::bf16_mm) | (scaled_mm ? bit(Backend::cublaslt) : 0U);
}

Backends available_backends(const at::Tensor& weight) {
  const Library& kernels = library();
  int capability = 0;
  kernels.check(kernels.capability(weight.device().index(), &capability), "asking for a GPU's compute capability");
  return backends_for(capability, weight.size(0), 2 * weight.size(1));
}

at::Tensor gemm(const at::Tensor& act_fp4,
                const at::Tensor& weight,
                const at::Tensor& act_sf,
                const at::Tensor& weight_scale,
                const at::Tensor& alpha,
                c10::ScalarType output_dtype,
                const std::optional<at::Tensor>& bias,
                Backend backend) {
  const torch_compat::PlainKeys plain;
  const std::int64_t m = act_fp4.size(0);
  const std::int64_t n = weight.size(0);
  const auto options = act_fp4.options();
  const at::Tensor factor = alpha.view({});  // one element in any number of dimensions
  if (m == 0 || n == 0) return at::empty({m, n}, options.dtype(output_dtype));

  at::Tensor sum;  // without the bias, in float32
  if (act_fp4.size(1) == 0) {
    sum = at::zeros({m, n}, options.dtype(at::kFloat));
  } else if (backend == Backend::cublaslt) {
    const bool fused = output_dtype != at::kFloat && (!bias.has_value() || bias->scalar_type() == output_dtype);
    sum = torch_compat::scaled_mm_of_nvfp4(aligned(act_fp4, 16), aligned(weight, 16), aligned(act_sf, 16),
                                           aligned(weight_scale, 16), alpha,
                                           fused && bias.has_value() ? std::optional(bias->contiguous()) : std::nullopt,
                                           fused ? output_dtype : at::kFloat);
    if (fused) return sum;
  } else {
    TORCH_CHECK(backend == Backend::bf16_mm, "NVFP4 on CUDA has no backend ", name_of(backend));
    sum = gemm_by_bf16(act_fp4, weight, act_sf, weight_scale).mul_(factor);
  }
  if (bias.has_value()) sum.add_(*bias);
  return sum.to(output_dtype);
}

}  // namespace dutyfree::nvfp4::cuda
