#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include "dutyfree/op.h"

// The operators that test_cpp_library.py calls.
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor axpy(const at::Tensor& x, const at::Tensor& y, double a) {
  TORCH_CHECK(x.sizes() == y.sizes(), "axpy: x has the sizes ", x.sizes(), ", y has ", y.sizes());
  return x * a + y;
}

at::Tensor axpy_fake(const at::Tensor&, const at::Tensor& y, double) { return at::empty_like(y); }

class Axpy : public torch::autograd::Function<Axpy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& y, double a) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("cpp_tests::axpy", "").typed<decltype(axpy)>();
    context->saved_data["a"] = a;
    const at::AutoDispatchBelowAutograd guard;
    return op.call(x, y, a);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gradients[0] * context->saved_data["a"].toDouble(), gradients[0], at::Tensor()};
  }
};

at::Tensor axpy_autograd(const at::Tensor& x, const at::Tensor& y, double a) { return Axpy::apply(x, y, a); }

at::Tensor& scale_(at::Tensor& x, double factor) { return x.mul_(factor); }

// No fake kernel and no autograd: Python registers them.
at::Tensor square(const at::Tensor& self) { return self * self; }

at::Tensor plus_number(const at::Tensor& x, int64_t number) { return x + number; }
at::Tensor plus_tensor(const at::Tensor& x, const at::Tensor& other) { return x + other; }

}  // namespace

DUTYFREE_LIBRARY(cpp_tests, m) {
  m.def("axpy(Tensor x, Tensor y, float a=1.0) -> Tensor")
      .impl<&axpy>(at::kCPU)
      .fake<&axpy_fake>()
      .autograd<&axpy_autograd>();
  m.def<&scale_>("scale_", {"x", "factor"}).impl<&scale_>(at::kCPU);
  m.def("square(Tensor self) -> Tensor").impl<&square>(at::kCPU);
  m.def("only_defined(Tensor x) -> Tensor");
  m.def("plus.number(Tensor x, int number) -> Tensor").impl<&plus_number>(at::kCPU);
  m.def("plus.tensor(Tensor x, *, Tensor other) -> Tensor").impl<&plus_tensor>(at::kCPU);
}
