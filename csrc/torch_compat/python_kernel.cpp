#include "torch_compat/python_kernel.h"

#include <c10/core/SafePyObject.h>
#include <malloc.h>
#include <torch/csrc/PyInterpreter.h>

#include <cstring>
#include <typeinfo>

#include "torch_compat/dispatch_table.h"

namespace dutyfree::torch_compat {
namespace {

// The members of torch 2.13's class, in their order. Only ever read, by way of a reference to its base.
class Layout : public c10::OperatorKernel {
 public:
  c10::SafePyObject function;
  c10::DispatchKey key;
  bool with_keyset;
  bool with_op;
};

// Set once, under the GIL.
bool confirmed = false;

const Layout* layout_of(const c10::KernelFunction& kernel) {
  const c10::OperatorKernel* functor = kernel_functor(boxed_kernel(kernel));
  if (functor == nullptr || std::strstr(typeid(*functor).name(), "18PythonKernelHolder") == nullptr) {
    return nullptr;
  }
  return static_cast<const Layout*>(functor);
}

PythonKernel read(const Layout& layout) {
  return {PyRef::borrow(layout.function.ptr(getPyInterpreter())), layout.with_keyset, layout.with_op};
}

bool holds(const c10::KernelFunction& kernel, PyObject* function, bool with_keyset) {
  const Layout* layout = layout_of(kernel);
  if (layout == nullptr ||
      malloc_usable_size(const_cast<Layout*>(layout)) < sizeof(Layout)) {  // it takes a void*, and only looks
    return false;
  }
  try {
    // Only compared: a pointer that is none of a Python object's must not be used as one. It throws where the member
    // that names the interpreter holds something else.
    return layout->function.ptr(getPyInterpreter()) == function && layout->with_keyset == with_keyset &&
           !layout->with_op;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

bool is_python_kernel(const c10::KernelFunction& kernel) { return layout_of(kernel) != nullptr; }

std::optional<PythonKernel> python_kernel(const c10::KernelFunction& kernel) {
  const Layout* layout = confirmed ? layout_of(kernel) : nullptr;
  return layout == nullptr ? std::nullopt : std::optional(read(*layout));
}

bool confirm_python_kernels(const c10::KernelFunction& plain_kernel,
                            PyObject* plain,
                            const c10::KernelFunction& keyed_kernel,
                            PyObject* keyed) {
  confirmed = holds(plain_kernel, plain, false) && holds(keyed_kernel, keyed, true);
  return confirmed;
}

}  // namespace dutyfree::torch_compat
