#include "nvfp4/checks.h"

#include <c10/util/Exception.h>

#include <type_traits>

#include "nvfp4/format.h"

namespace dutyfree::nvfp4 {
namespace {

// A size as a number or, for fake kernels, as a symbol.
template <typename Int>
Int size(const at::Tensor& tensor, std::int64_t dim) {
  if constexpr (std::is_same_v<Int, std::int64_t>) {
    return tensor.size(dim);
  } else {
    return tensor.sym_size(dim);
  }
}
template <typename Int>
Int elements(const at::Tensor& tensor) {
  if constexpr (std::is_same_v<Int, std::int64_t>) {
    return tensor.numel();
  } else {
    return tensor.sym_numel();
  }
}

void check_contiguous(std::string_view name, const char* argument, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_contiguous(), name, ": ", argument, " must be contiguous, but has strides ",
                    tensor.sym_strides(), " for shape ", tensor.sym_sizes(), ". Call .contiguous() on it.");
}

// A tensor whose memory was given back, or cut short, as parts of a model are between their uses.
template <typename Int>
void check_memory(std::string_view name, const char* argument, const at::Tensor& tensor) {
  if constexpr (std::is_same_v<Int, std::int64_t>) {
    const auto needed = static_cast<std::size_t>((tensor.storage_offset() + tensor.numel()) * tensor.element_size());
    TORCH_CHECK_VALUE(tensor.numel() == 0 || tensor.storage().nbytes() >= needed, name, ": ", argument, " needs ",
                      needed, " bytes of its storage, which has only ", tensor.storage().nbytes(),
                      ": it was resized after the tensor was made.");
  }
}

void check_device(std::string_view name,
                  const char* argument,
                  const at::Tensor& tensor,
                  const at::Tensor& input,
                  const char* input_argument) {
  TORCH_CHECK_VALUE(tensor.device() == input.device(), name, ": ", argument, " is on ", tensor.device(), ", but ",
                    input_argument, " is on ", input.device(), ". All tensors must be on one device.");
}

}  // namespace

template <typename Int>
Int rows_of(const at::Tensor& input) {
  Int rows = 1;
  for (std::int64_t i = 0; i + 1 < input.dim(); ++i) {
    rows = rows * size<Int>(input, i);
  }
  return rows;
}

template <typename Int>
void check_quantize(const at::Tensor& input, const at::Tensor& input_scale, const Int& scaling_vector_size) {
  const std::string_view name = kQuantizeName;
  const c10::ScalarType dtype = input.scalar_type();
  const bool accepted = dtype == c10::kHalf || dtype == c10::kBFloat16 || dtype == c10::kFloat8_e4m3fn ||
                        (dtype == c10::kFloat && !input.is_cuda());
  TORCH_CHECK_TYPE(accepted, name,
                   ": input must be float16, bfloat16 or float8_e4m3fn (on the CPU also float32), but is ", dtype, ".");
  TORCH_CHECK_VALUE(input.dim() >= 2, name, ": input must have two dimensions or more, but has shape ",
                    input.sym_sizes(), ".");
  TORCH_CHECK_VALUE(scaling_vector_size == kBlock, name, ": scaling_vector_size must be 16, which is NVFP4's, but is ",
                    scaling_vector_size, ".");
  TORCH_CHECK_VALUE(size<Int>(input, -1) % kBlock == 0, name,
                    ": input's last dimension must be a multiple of 16, but input has shape ", input.sym_sizes(), ".");
  check_contiguous(name, "input", input);
  check_memory<Int>(name, "input", input);
  TORCH_CHECK_TYPE(input_scale.scalar_type() == c10::kFloat, name, ": input_scale must be float32, but is ",
                   input_scale.scalar_type(), ".");
  check_device(name, "input_scale", input_scale, input, "input");
  const Int count = elements<Int>(input_scale);
  TORCH_CHECK_VALUE(count == 1 || count == rows_of<Int>(input), name,
                    ": input_scale must have one element, or one for each of input's ", rows_of<Int>(input),
                    " rows, but has shape ", input_scale.sym_sizes(), ".");
  check_contiguous(name, "input_scale", input_scale);
  check_memory<Int>(name, "input_scale", input_scale);
}

template <typename Int>
void check_bytes(std::string_view name, const char* argument, const at::Tensor& tensor, c10::ScalarType other) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == c10::kByte || tensor.scalar_type() == other, name, ": ", argument,
                   " must be uint8 or ", other, ", but is ", tensor.scalar_type(), ".");
  check_contiguous(name, argument, tensor);
  check_memory<Int>(name, argument, tensor);
}

template <typename Int>
void check_scale_factors(std::string_view name,
                         const char* argument,
                         const at::Tensor& tensor,
                         const Int& rows,
                         const Int& columns,
                         bool swizzled) {
  check_bytes<Int>(name, argument, tensor, c10::kFloat8_e4m3fn);
  const Int expected = swizzled ? swizzled_size<Int>(rows, columns / kBlock) : rows * (columns / kBlock);
  TORCH_CHECK_VALUE(elements<Int>(tensor) == expected, name, ": ", argument, " must have ", expected, " elements, the ",
                    swizzled ? "swizzled" : "linear", " scale factors of a matrix of ", rows, " × ", columns,
                    ", but has shape ", tensor.sym_sizes(), ".");
}

template <typename Int>
void check_gemm(const at::Tensor& act_fp4,
                const at::Tensor& weight,
                const at::Tensor& act_sf,
                const at::Tensor& weight_scale,
                const at::Tensor& alpha,
                c10::ScalarType output_dtype,
                std::int64_t output_buffer_kind,
                const std::optional<at::Tensor>& bias) {
  const std::string_view name = kGemmName;
  check_bytes<Int>(name, "act_fp4", act_fp4, c10::ScalarType::Float4_e2m1fn_x2);
  check_bytes<Int>(name, "weight", weight, c10::ScalarType::Float4_e2m1fn_x2);
  TORCH_CHECK_VALUE(act_fp4.dim() == 2, name, ": act_fp4 must have two dimensions, (M, K / 2), but has shape ",
                    act_fp4.sym_sizes(), ".");
  TORCH_CHECK_VALUE(weight.dim() == 2, name, ": weight must have two dimensions, (N, K / 2), but has shape ",
                    weight.sym_sizes(), ".");
  TORCH_CHECK_VALUE(size<Int>(act_fp4, 1) == size<Int>(weight, 1), name,
                    ": act_fp4 and weight must have the same K, but have shapes ", act_fp4.sym_sizes(), " and ",
                    weight.sym_sizes(), ", two elements a byte.");
  const Int columns = size<Int>(act_fp4, 1) * 2;
  TORCH_CHECK_VALUE(columns % kBlock == 0, name, ": K must be a multiple of 16, but is ", columns, ".");
  check_scale_factors<Int>(name, "act_sf", act_sf, size<Int>(act_fp4, 0), columns, true);
  check_scale_factors<Int>(name, "weight_scale", weight_scale, size<Int>(weight, 0), columns, true);
  TORCH_CHECK_TYPE(alpha.scalar_type() == c10::kFloat, name, ": alpha must be float32, but is ", alpha.scalar_type(),
                   ".");
  TORCH_CHECK_VALUE(elements<Int>(alpha) == 1, name, ": alpha must have one element, but has shape ", alpha.sym_sizes(),
                    ".");
  check_device(name, "weight", weight, act_fp4, "act_fp4");
  check_device(name, "act_sf", act_sf, act_fp4, "act_fp4");
  check_device(name, "weight_scale", weight_scale, act_fp4, "act_fp4");
  check_device(name, "alpha", alpha, act_fp4, "act_fp4");
  TORCH_CHECK_VALUE(output_dtype == c10::kBFloat16 || output_dtype == c10::kHalf || output_dtype == c10::kFloat, name,
                    ": output_dtype must be bfloat16, float16 or float32, but is ", output_dtype, ".");
  TORCH_CHECK_VALUE(output_buffer_kind == 0, name,
                    ": output_buffer_kind must be 0, a buffer of PyTorch's allocator; those of TensorRT-LLM's "
                    "communicators (",
                    output_buffer_kind, ") are not available here.");
  if (bias.has_value()) {
    TORCH_CHECK_TYPE(bias->scalar_type() == c10::kBFloat16 || bias->scalar_type() == c10::kHalf ||
                         bias->scalar_type() == c10::kFloat,
                     name, ": bias must be bfloat16, float16 or float32, but is ", bias->scalar_type(), ".");
    TORCH_CHECK_VALUE(bias->dim() == 1 && size<Int>(*bias, 0) == size<Int>(weight, 0), name, ": bias must have shape [",
                      size<Int>(weight, 0), "], one element a row of weight, but has shape ", bias->sym_sizes(), ".");
    check_device(name, "bias", *bias, act_fp4, "act_fp4");
  }
}

template <typename Int>
void check_dequantize(const at::Tensor& values,
                      const at::Tensor& scale_factors,
                      const at::Tensor& global_scale,
                      c10::ScalarType dtype,
                      bool swizzled) {
  const std::string_view name = kDequantizeName;
  check_bytes<Int>(name, "values", values, c10::ScalarType::Float4_e2m1fn_x2);
  TORCH_CHECK_VALUE(values.dim() >= 1, name, ": values must have a dimension or more.");
  const Int columns = size<Int>(values, -1) * 2;
  TORCH_CHECK_VALUE(columns % kBlock == 0, name, ": values must have a multiple of 8 bytes a row, but has shape ",
                    values.sym_sizes(), ".");
  check_scale_factors<Int>(name, "scale_factors", scale_factors, rows_of<Int>(values), columns, swizzled);
  TORCH_CHECK_TYPE(global_scale.scalar_type() == c10::kFloat, name, ": global_scale must be float32, but is ",
                   global_scale.scalar_type(), ".");
  const Int count = elements<Int>(global_scale);
  TORCH_CHECK_VALUE((count == 1 || count == rows_of<Int>(values)) && global_scale.is_contiguous(), name,
                    ": global_scale must be contiguous and have one element, or one for each of values' ",
                    rows_of<Int>(values), " rows, but has shape ", global_scale.sym_sizes(), ".");
  TORCH_CHECK_VALUE(values.device() == scale_factors.device() && values.device() == global_scale.device(), name,
                    ": values, scale_factors and global_scale must be on one device, but are on ", values.device(),
                    ", ", scale_factors.device(), " and ", global_scale.device(), ".");
  TORCH_CHECK_TYPE(dtype == c10::kFloat || dtype == c10::kBFloat16 || dtype == c10::kHalf, name,
                   ": dtype must be float32, bfloat16 or float16, but is ", dtype, ".");
}

template void check_bytes<std::int64_t>(std::string_view, const char*, const at::Tensor&, c10::ScalarType);
template void check_bytes<c10::SymInt>(std::string_view, const char*, const at::Tensor&, c10::ScalarType);
template std::int64_t rows_of(const at::Tensor& input);
template c10::SymInt rows_of(const at::Tensor& input);
template void check_quantize(const at::Tensor& input,
                             const at::Tensor& input_scale,
                             const std::int64_t& scaling_vector_size);
template void check_quantize(const at::Tensor& input,
                             const at::Tensor& input_scale,
                             const c10::SymInt& scaling_vector_size);
template void check_scale_factors(std::string_view name,
                                  const char* argument,
                                  const at::Tensor& tensor,
                                  const std::int64_t& rows,
                                  const std::int64_t& columns,
                                  bool swizzled);
template void check_scale_factors(std::string_view name,
                                  const char* argument,
                                  const at::Tensor& tensor,
                                  const c10::SymInt& rows,
                                  const c10::SymInt& columns,
                                  bool swizzled);
template void check_dequantize<std::int64_t>(const at::Tensor& values,
                                             const at::Tensor& scale_factors,
                                             const at::Tensor& global_scale,
                                             c10::ScalarType dtype,
                                             bool swizzled);
template void check_dequantize<c10::SymInt>(const at::Tensor& values,
                                            const at::Tensor& scale_factors,
                                            const at::Tensor& global_scale,
                                            c10::ScalarType dtype,
                                            bool swizzled);
template void check_gemm<std::int64_t>(const at::Tensor& act_fp4,
                                       const at::Tensor& weight,
                                       const at::Tensor& act_sf,
                                       const at::Tensor& weight_scale,
                                       const at::Tensor& alpha,
                                       c10::ScalarType output_dtype,
                                       std::int64_t output_buffer_kind,
                                       const std::optional<at::Tensor>& bias);
template void check_gemm<c10::SymInt>(const at::Tensor& act_fp4,
                                      const at::Tensor& weight,
                                      const at::Tensor& act_sf,
                                      const at::Tensor& weight_scale,
                                      const at::Tensor& alpha,
                                      c10::ScalarType output_dtype,
                                      std::int64_t output_buffer_kind,
                                      const std::optional<at::Tensor>& bias);

}  // namespace dutyfree::nvfp4
