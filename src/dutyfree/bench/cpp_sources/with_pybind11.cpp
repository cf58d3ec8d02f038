// The empty kernel as a function of pybind11, with PyTorch's own caster for tensors.
#include <torch/extension.h>

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("three", [](const at::Tensor&, const at::Tensor&, const at::Tensor&, std::int64_t) {});
}
