#include "torch_compat/scaled_mm.h"

#include <ATen/BlasBackend.h>
#include <ATen/ops/_scaled_mm_v2.h>
#include <ATen/ops/ones_like.h>

#include <array>
#include <cstdint>

namespace dutyfree::torch_compat {

at::Tensor scaled_mm_of_nvfp4(const at::Tensor& a,
                              const at::Tensor& b,
                              const at::Tensor& a_scale_factors,
                              const at::Tensor& b_scale_factors,
                              const at::Tensor& alpha,
                              const std::optional<at::Tensor>& bias,
                              c10::ScalarType dtype) {
  using at::blas::ScalingType;
  using at::blas::SwizzleType;
  // Two levels of scales: a factor for 16 elements and one for the matrix. The product of the matrices' becomes
  // cuBLASLt's alpha, so that all of ours goes to one side. The other side's 1 is made anew for each call: kept, it
  // could have been written while a CUDA graph was recorded, that is never.
  const std::array<int64_t, 2> recipe = {static_cast<int64_t>(ScalingType::BlockWise1x16),
                                         static_cast<int64_t>(ScalingType::TensorWise)};
  const std::array<int64_t, 2> swizzle = {static_cast<int64_t>(SwizzleType::SWIZZLE_32_4_4),
                                          static_cast<int64_t>(SwizzleType::NO_SWIZZLE)};
  const std::array<at::Tensor, 2> a_scales = {a_scale_factors.view(at::kFloat8_e4m3fn), alpha};
  const std::array<at::Tensor, 2> b_scales = {b_scale_factors.view(at::kFloat8_e4m3fn), at::ones_like(alpha)};
  return at::_scaled_mm_v2(a.view(at::kFloat4_e2m1fn_x2), b.view(at::kFloat4_e2m1fn_x2).t(), a_scales, recipe, swizzle,
                           b_scales, recipe, swizzle, bias, dtype);
}

}  // namespace dutyfree::torch_compat
