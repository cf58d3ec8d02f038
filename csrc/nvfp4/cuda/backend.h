#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "nvfp4/backends.h"

// The operators on CUDA tensors. Arguments are checked already: devices, types, sizes and contiguity are as the
// operators promise. Work goes to torch's current stream of the tensors' device, and nothing waits for it; results are
// new tensors. The Python global lock is not needed. Every function throws c10::Error.
namespace dutyfree::nvfp4::cuda {

// Values (..., K/2) and scale factors, one-dimensional, both uint8. The bits are those of the CPU operator.
std::vector<at::Tensor> quantize(const at::Tensor& input, const at::Tensor& input_scale, bool swizzled);

// (..., K) in float32, bfloat16 or float16: e2m1 times e4m3 divided by the global scale in float32, rounded once more.
at::Tensor dequantize(const at::Tensor& values,
                      const at::Tensor& scale_factors,
                      const at::Tensor& global_scale,
                      c10::ScalarType dtype,
                      bool swizzled);

// What multiplies by this weight (N, K/2) on its device:
//   cublaslt  PyTorch's scaled_mm: capability 10.0 or later, N a multiple of 16, K of 32
//   bf16_mm   both sides decoded to bfloat16, without loss, and multiplied by PyTorch's mm: everywhere
Backends available_backends(const at::Tensor& weight);
// The same without a device: `capability` is ten times the major one plus the minor one.
Backends backends_for(int capability, std::int64_t rows, std::int64_t columns);

// alpha * (act . weight^T) + bias, (M, N). Products and sums in float32, in the order of the library that multiplies.
//   cublaslt  alpha, the bias and the rounding to the output's type happen inside, where the bias is of that type;
//             a bias of another type, or a float32 result, is as below
//   bf16_mm   the sum is a float32 tensor; times alpha, plus the bias, both rounded to float32; then rounded once
at::Tensor gemm(const at::Tensor& act_fp4,
                const at::Tensor& weight,
                const at::Tensor& act_sf,
                const at::Tensor& weight_scale,
                const at::Tensor& alpha,
                c10::ScalarType output_dtype,
                const std::optional<at::Tensor>& bias,
                Backend backend);

}  // namespace dutyfree::nvfp4::cuda
