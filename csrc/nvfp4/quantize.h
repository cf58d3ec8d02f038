#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// trtllm::tunable_fp4_quantize and the helpers around the format, on tensors.
namespace dutyfree::nvfp4 {

std::vector<at::Tensor> quantize_cpu(const at::Tensor& input,
                                     const at::Tensor& input_scale,
                                     std::int64_t scaling_vector_size,
                                     bool is_sf_swizzled_layout);
std::vector<at::Tensor> quantize_fake(const at::Tensor& input,
                                      const at::Tensor& input_scale,
                                      c10::SymInt scaling_vector_size,
                                      bool is_sf_swizzled_layout);

at::Tensor dequantize_cpu(const at::Tensor& values,
                          const at::Tensor& scale_factors,
                          const at::Tensor& global_scale,
                          c10::ScalarType dtype,
                          bool is_sf_swizzled_layout);
at::Tensor dequantize_fake(const at::Tensor& values,
                           const at::Tensor& scale_factors,
                           const at::Tensor& global_scale,
                           c10::ScalarType dtype,
                           bool is_sf_swizzled_layout);

at::Tensor swizzle(const at::Tensor& scale_factors);
at::Tensor swizzle_fake(const at::Tensor& scale_factors);
at::Tensor unswizzle(const at::Tensor& scale_factors, std::int64_t rows, std::int64_t columns);
at::Tensor unswizzle_fake(const at::Tensor& scale_factors, c10::SymInt rows, c10::SymInt columns);

}  // namespace dutyfree::nvfp4
