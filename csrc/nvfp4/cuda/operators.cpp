#include "nvfp4/cuda/operators.h"

#include <c10/util/Exception.h>

#include <string>

#include "nvfp4/backends.h"
#include "nvfp4/checks.h"
#include "nvfp4/cuda/backend.h"

namespace dutyfree::nvfp4 {

std::vector<at::Tensor> quantize_cuda(const at::Tensor& input,
                                      const at::Tensor& input_scale,
                                      std::int64_t scaling_vector_size,
                                      bool is_sf_swizzled_layout) {
  check_quantize(input, input_scale, scaling_vector_size);
  return cuda::quantize(input, input_scale, is_sf_swizzled_layout);
}

at::Tensor dequantize_cuda(const at::Tensor& values,
                           const at::Tensor& scale_factors,
                           const at::Tensor& global_scale,
                           c10::ScalarType dtype,
                           bool is_sf_swizzled_layout) {
  check_dequantize(values, scale_factors, global_scale, dtype, is_sf_swizzled_layout);
  return cuda::dequantize(values, scale_factors, global_scale, dtype, is_sf_swizzled_layout);
}

at::Tensor gemm_cuda(const at::Tensor& act_fp4,
                     const at::Tensor& weight,
                     const at::Tensor& act_sf,
                     const at::Tensor& weight_scale,
                     const at::Tensor& alpha,
                     c10::ScalarType output_dtype,
                     std::int64_t output_buffer_kind,
                     std::string_view allowed_backends,
                     at::OptionalIntArrayRef /*group*/,
                     const std::optional<at::Tensor>& bias) {
  check_gemm(act_fp4, weight, act_sf, weight_scale, alpha, output_dtype, output_buffer_kind, bias);
  const std::vector<std::string> names = cuda::available_backends(weight);
  Backends available = 0;
  for (const std::string& name : names) {
    available |= parse_backends(name);
  }
  const Backends usable =
      usable_backends(parse_backends(allowed_backends), available, "this GPU for a weight of this shape");
  for (const std::string& name : names) {  // the fastest first
    if ((usable & parse_backends(name)) != 0) {
      return cuda::gemm(act_fp4, weight, act_sf, weight_scale, alpha, output_dtype, bias, name);
    }
  }
  TORCH_INTERNAL_ASSERT(false, "usable_backends gave none");
}

}  // namespace dutyfree::nvfp4
