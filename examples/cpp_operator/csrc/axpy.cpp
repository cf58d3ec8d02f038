#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <dutyfree/op.h>

// axpy(x, y, a) = a * x + y, for tensors of one shape and one floating-point dtype.
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Runs with data and without: the checks are those of the fake kernel, too.
void check(const at::Tensor& x, const at::Tensor& y) {
  TORCH_CHECK_VALUE(x.sizes() == y.sizes(), "axpy: x has the shape ", x.sizes(), ", y has ", y.sizes(),
                    "; they have to be the same");
  TORCH_CHECK_TYPE(x.scalar_type() == y.scalar_type() && x.is_floating_point(), "axpy: x is ", x.scalar_type(),
                   ", y is ", y.scalar_type(), "; they have to be of one floating-point dtype");
}

at::Tensor axpy_cpu(const at::Tensor& x, const at::Tensor& y, double a) {
  check(x, y);
  const at::Tensor x_dense = x.contiguous();
  const at::Tensor y_dense = y.contiguous();
  at::Tensor result = at::empty_like(x_dense);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "axpy", [&] {
    const auto* const from_x = x_dense.const_data_ptr<scalar_t>();
    const auto* const from_y = y_dense.const_data_ptr<scalar_t>();
    auto* const to = result.mutable_data_ptr<scalar_t>();
    const auto factor = static_cast<scalar_t>(a);
    for (int64_t index = 0; index < result.numel(); ++index) {
      to[index] = factor * from_x[index] + from_y[index];
    }
  });
  return result;
}

// Shape, dtype and strides of the result, without data: what torch.compile asks for.
at::Tensor axpy_fake(const at::Tensor& x, const at::Tensor& y, double /*a*/) {
  check(x, y);
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

class Axpy : public torch::autograd::Function<Axpy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& y, double a) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("axpy_ops::axpy", "").typed<decltype(axpy_cpu)>();
    context->saved_data["a"] = a;
    // The operator again, below autograd: it finds the kernel of the device, or the fake one while a graph is traced.
    const at::AutoDispatchBelowAutograd below_autograd;
    return op.call(x, y, a);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gradients[0] * context->saved_data["a"].toDouble(), gradients[0], at::Tensor()};
  }
};

at::Tensor axpy_autograd(const at::Tensor& x, const at::Tensor& y, double a) { return Axpy::apply(x, y, a); }

}  // namespace

DUTYFREE_LIBRARY(axpy_ops, m) {
  m.def("axpy(Tensor x, Tensor y, float a=1.0) -> Tensor")
      .impl<&axpy_cpu>(at::kCPU)
      .fake<&axpy_fake>()
      .autograd<&axpy_autograd>();
}
