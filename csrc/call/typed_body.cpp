#include "call/typed_body.h"

#include <new>

#include "torch_compat/conversion.h"
#include "torch_compat/gil.h"

namespace dutyfree::call {
namespace {

// Room for the tensors that a kernel returns. Owns those that it was told of.
class TensorResults {
 public:
  TensorResults() {}  // NOLINT(modernize-use-equals-default): a defaulted one would clear the room
  TensorResults(const TensorResults&) = delete;
  TensorResults& operator=(const TensorResults&) = delete;
  ~TensorResults() {
    for (int index = 0; index < count_; ++index) {
      tensors()[index].~Tensor();
    }
  }

  at::Tensor* tensors() { return std::launder(reinterpret_cast<at::Tensor*>(room_)); }
  // The kernel has returned and made so many.
  void own(int count) { count_ = count; }

  PyRef as_python() {
    if (count_ == 0) {
      return PyRef::borrow(Py_None);
    }
    if (count_ == 1) {
      return PyRef::steal(THPVariable_Wrap(std::move(tensors()[0])));
    }
    PyRef tuple = PyRef::steal(PyTuple_New(count_));
    for (int index = 0; tuple && index < count_; ++index) {
      PyObject* item = THPVariable_Wrap(std::move(tensors()[index]));
      if (item == nullptr) {
        return {};
      }
      PyTuple_SET_ITEM(tuple.get(), index, item);
    }
    return tuple;
  }

 private:
  alignas(at::Tensor) std::byte room_[kMostTensorResults * sizeof(at::Tensor)];
  int count_ = 0;
};

[[gnu::always_inline]] inline void call_kernel(const TypedBody& body, const Signature& signature, Results& results) {
  if (body.releases_gil) [[unlikely]] {
    body.arguments->own_tensors(signature);
    const torch_compat::GilReleased released;
    body.call(body.arguments->values(), results);
  } else {
    body.call(body.arguments->values(), results);
  }
}

[[gnu::always_inline]] inline PyRef run_for_tensors(const TypedBody& body, const Signature& signature) {
  TensorResults made;
  Results results{.tensors = made.tensors(), .others = nullptr};
  call_kernel(body, signature, results);
  made.own(body.tensor_results);
  return made.as_python();
}

PyRef run_for_others(const TypedBody& body, const Signature& signature) {
  torch::jit::Stack stack;
  Results results{.tensors = nullptr, .others = &stack};
  call_kernel(body, signature, results);
  return torch_compat::stack_as_python(stack);
}

}  // namespace

PyRef run_typed(const TypedBody& body, const Signature& signature) {
  try {
    return body.tensor_results >= 0 ? run_for_tensors(body, signature) : run_for_others(body, signature);
  } catch (...) {
    torch_compat::set_python_error();
    return {};
  }
}

}  // namespace dutyfree::call
