#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

// What both operators, the helpers and their fake kernels demand of their arguments. Every function throws an error
// that names the operator, says what is wrong with what it got, and what is accepted. `Int` is std::int64_t or, in fake
// kernels, c10::SymInt: arithmetic on symbols that are numbers would be half of what an operator costs around its
// kernel.
namespace dutyfree::nvfp4 {

constexpr std::string_view kQuantizeName = "trtllm::tunable_fp4_quantize";
constexpr std::string_view kGemmName = "trtllm::nvfp4_gemm";
constexpr std::string_view kDequantizeName = "dutyfree::fp4_dequantize";

// Rows of a matrix that has `input`'s last dimension as columns.
template <typename Int>
Int rows_of(const at::Tensor& input);

template <typename Int>
void check_quantize(const at::Tensor& input, const at::Tensor& input_scale, const Int& scaling_vector_size);

// Bytes that hold codes or scale factors: uint8, or the dtype that PyTorch has for them.
template <typename Int>
void check_bytes(std::string_view name, const char* argument, const at::Tensor& tensor, c10::ScalarType other);

// Scale factors for a matrix of `rows` and `columns` elements, swizzled or linear.
template <typename Int>
void check_scale_factors(std::string_view name,
                         const char* argument,
                         const at::Tensor& tensor,
                         const Int& rows,
                         const Int& columns,
                         bool swizzled);

template <typename Int>
void check_dequantize(const at::Tensor& values,
                      const at::Tensor& scale_factors,
                      const at::Tensor& global_scale,
                      c10::ScalarType dtype,
                      bool swizzled);

template <typename Int>
void check_gemm(const at::Tensor& act_fp4,
                const at::Tensor& weight,
                const at::Tensor& act_sf,
                const at::Tensor& weight_scale,
                const at::Tensor& alpha,
                c10::ScalarType output_dtype,
                std::int64_t output_buffer_kind,
                const std::optional<at::Tensor>& bias);

}  // namespace dutyfree::nvfp4
