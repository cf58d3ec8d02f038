#include "nvfp4/cuda/operators.h"

#include <c10/util/Exception.h>

#include "autotune/device_work.h"
#include "nvfp4/backends.h"
#include "nvfp4/checks.h"
#include "nvfp4/cuda/backend.h"

namespace dutyfree::nvfp4 {

std::vector<at::Tensor> quantize_cuda(const at::Tensor& input,
                                      const at::Tensor& input_scale,
                                      std::int64_t scaling_vector_size,
                                      bool is_sf_swizzled_layout) {
  check_quantize<std::int64_t>(input, input_scale, scaling_vector_size);
  return cuda::quantize(input, input_scale, is_sf_swizzled_layout);
}

at::Tensor dequantize_cuda(const at::Tensor& values,
                           const at::Tensor& scale_factors,
                           const at::Tensor& global_scale,
                           c10::ScalarType dtype,
                           bool is_sf_swizzled_layout) {
  check_dequantize<std::int64_t>(values, scale_factors, global_scale, dtype, is_sf_swizzled_layout);
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
  check_gemm<std::int64_t>(act_fp4, weight, act_sf, weight_scale, alpha, output_dtype, output_buffer_kind, bias);
  const Backends usable = usable_backends(parse_backends(allowed_backends), cuda::available_backends(weight),
                                          "this GPU for a weight of this shape");
  const auto product = [&](Backend backend) {
    return cuda::gemm(act_fp4, weight, act_sf, weight_scale, alpha, output_dtype, bias, backend);
  };
  return product(choose_backend(usable, c10::kCUDA, output_dtype, act_fp4.size(0), weight.size(0), act_fp4.size(1) * 2,
                                [&] {
                                  return autotune::work_on(weight.device(),
                                                           [&](int tactic) { product(static_cast<Backend>(tactic)); });
                                }));
}

}  // namespace dutyfree::nvfp4
