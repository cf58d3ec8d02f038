// The empty kernel as an operator, registered by PyTorch's own macros and by dutyfree's, and what shows the cost of one
// more tensor.
#include <dutyfree/op.h>

namespace {

void three(const at::Tensor&, const at::Tensor&, const at::Tensor&, std::int64_t) {}
void one(const at::Tensor&, std::int64_t) {}
void nine(const at::Tensor&,
          const at::Tensor&,
          const at::Tensor&,
          const at::Tensor&,
          const at::Tensor&,
          const at::Tensor&,
          const at::Tensor&,
          const at::Tensor&,
          const at::Tensor&,
          std::int64_t) {}

}  // namespace

DUTYFREE_LIBRARY(dutyfree_bench_cpp, m) {
  m.def<&three>("three").impl<&three>(at::kCPU).impl<&three>(c10::DispatchKey::Meta);
  m.def<&one>("one").impl<&one>(at::kCPU);
  m.def<&nine>("nine").impl<&nine>(at::kCPU);
}

TORCH_LIBRARY(dutyfree_bench_torch, m) {
  m.def("three", &three);
}
