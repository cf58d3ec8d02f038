#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

// What torch.nn.functional.scaled_mm calls, which C++ has no public name for.
namespace dutyfree::torch_compat {

// alpha * (a . b^T) + bias for NVFP4 matrices, by cuBLASLt. a (M, K/2) and b (N, K/2) are uint8 with two codes a byte,
// their scale factors uint8 in the swizzled layout, alpha float32 on the device, one element. PyTorch wants K to be a
// multiple of 16 and N of 16, cuBLASLt K to be one of 32; the bias has to be of `dtype`, which must not be float32
// then.
at::Tensor scaled_mm_of_nvfp4(const at::Tensor& a,
                              const at::Tensor& b,
                              const at::Tensor& a_scale_factors,
                              const at::Tensor& b_scale_factors,
                              const at::Tensor& alpha,
                              const std::optional<at::Tensor>& bias,
                              c10::ScalarType dtype);

}  // namespace dutyfree::torch_compat
