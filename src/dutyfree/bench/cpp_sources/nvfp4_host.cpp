// Operators with the arguments of the two on NVFP4 that do no more than allocate their results: what a call costs at
// least.
#include <ATen/Functions.h>

#include <dutyfree/op.h>

namespace {

std::vector<at::Tensor> quantize(const at::Tensor& input, const at::Tensor&, std::int64_t, bool) {
  const at::TensorOptions bytes = input.options().dtype(c10::kByte);
  return {at::empty({input.size(0), input.size(1) / 2}, bytes), at::empty({512}, bytes)};
}

at::Tensor gemm(const at::Tensor& act_fp4,
                const at::Tensor& weight,
                const at::Tensor&,
                const at::Tensor&,
                const at::Tensor&,
                c10::ScalarType output_dtype,
                std::int64_t,
                std::string_view,
                at::OptionalIntArrayRef,
                const std::optional<at::Tensor>&) {
  return at::empty({act_fp4.size(0), weight.size(0)}, act_fp4.options().dtype(output_dtype));
}

}  // namespace

DUTYFREE_LIBRARY(dutyfree_bench_nvfp4, m) {
  m.def(
       "quantize(Tensor input, Tensor input_scale, SymInt scaling_vector_size=16, bool is_sf_swizzled_layout=False) -> "
       "Tensor[]")
      .impl<&quantize>(at::kCPU);
  m.def(
       "gemm(Tensor act_fp4, Tensor weight, Tensor act_sf, Tensor weight_scale, Tensor alpha, ScalarType output_dtype, "
       "SymInt output_buffer_kind=0, str allowed_backends=\"cutlass,cublaslt,cuda_core\", SymInt[]? group=None, "
       "Tensor? bias=None) -> Tensor")
      .impl<&gemm>(at::kCPU);
}
