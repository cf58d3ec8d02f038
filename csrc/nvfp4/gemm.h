#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// trtllm::nvfp4_gemm on tensors: out = alpha * (activations times weight), with both in NVFP4.
namespace dutyfree::nvfp4 {

at::Tensor gemm_cpu(const at::Tensor& act_fp4,
                    const at::Tensor& weight,
                    const at::Tensor& act_sf,
                    const at::Tensor& weight_scale,
                    const at::Tensor& alpha,
                    c10::ScalarType output_dtype,
                    std::int64_t output_buffer_kind,
                    std::string_view allowed_backends,
                    at::OptionalIntArrayRef group,
                    const std::optional<at::Tensor>& bias);
at::Tensor gemm_fake(const at::Tensor& act_fp4,
                     const at::Tensor& weight,
                     const at::Tensor& act_sf,
                     const at::Tensor& weight_scale,
                     const at::Tensor& alpha,
                     c10::ScalarType output_dtype,
                     std::int64_t output_buffer_kind,
                     std::string_view allowed_backends,
                     at::OptionalIntArrayRef group,
                     const std::optional<at::Tensor>& bias);

// The names that allowed_backends may have on this machine's CPU.
std::vector<std::string> cpu_backends();

}  // namespace dutyfree::nvfp4
