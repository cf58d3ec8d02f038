#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

// The operators' CUDA kernels as the schemas have them: arguments are checked, and the GEMM's backend is chosen.
namespace dutyfree::nvfp4 {

std::vector<at::Tensor> quantize_cuda(const at::Tensor& input,
                                      const at::Tensor& input_scale,
                                      std::int64_t scaling_vector_size,
                                      bool is_sf_swizzled_layout);

at::Tensor dequantize_cuda(const at::Tensor& values,
                           const at::Tensor& scale_factors,
                           const at::Tensor& global_scale,
                           c10::ScalarType dtype,
                           bool is_sf_swizzled_layout);

at::Tensor gemm_cuda(const at::Tensor& act_fp4,
                     const at::Tensor& weight,
                     const at::Tensor& act_sf,
                     const at::Tensor& weight_scale,
                     const at::Tensor& alpha,
                     c10::ScalarType output_dtype,
                     std::int64_t output_buffer_kind,
                     std::string_view allowed_backends,
                     at::OptionalIntArrayRef group,
                     const std::optional<at::Tensor>& bias);

}  // namespace dutyfree::nvfp4
