#include "call/known_kernels.h"

#include "seeded_fault.h"

namespace dutyfree::call {

PyObject* BackendKernel::look_up() {
  if (!parts_.functions) {
    return function_.get();
  }
  PyObject* entry = PyDict_GetItemWithError(parts_.functions.get(), device_type());
  if (entry == nullptr || entry != entry_.get()) {
    return nullptr;
  }
  functions_.remember();
  return enabled_function();
}

PyObject* BackendKernel::enabled_function() const {
  if (seeded(Fault::DisabledKernelIgnored)) {
    return function_.get();
  }
  // The key is a str, None or Ellipsis, so this runs no Python code and can't fail.
  return PySet_Contains(parts_.disabled.get(), disabled_key_.get()) == 1 ? parts_.default_function.get()
                                                                         : function_.get();
}

bool BackendKernel::refresh() {
  PyRef entry = PyRef::borrow(PyDict_GetItemWithError(parts_.functions.get(), device_type()));
  if (!entry) {
    if (!PyErr_Occurred()) {
      PyErr_SetObject(PyExc_KeyError, device_type());
    }
    return false;
  }
  const PyRef unwrapped = PyRef::steal(PyObject_CallOneArg(parts_.unwrap.get(), entry.get()));
  PyObject *function = nullptr, *key = nullptr;
  if (!unwrapped || !PyArg_ParseTuple(unwrapped.get(), "OO", &function, &key)) {
    return false;
  }
  function_ = PyRef::borrow(function);
  disabled_key_ = PyRef::borrow(key);
  entry_ = std::move(entry);
  return true;
}

int BackendKernel::traverse(visitproc visit, void* arg) const {
  Py_VISIT(parts_.functions.get());
  Py_VISIT(parts_.disabled.get());
  Py_VISIT(parts_.device_type.get());
  Py_VISIT(parts_.default_function.get());
  Py_VISIT(parts_.unwrap.get());
  Py_VISIT(parts_.judge.get());
  Py_VISIT(entry_.get());
  Py_VISIT(function_.get());
  Py_VISIT(disabled_key_.get());
  return 0;
}

KnownKernel::KnownKernel(Role role, c10::KernelFunction kernel)
    : role(role), identity(torch_compat::kernel_identity(kernel)), kernel(std::move(kernel)) {}

int KnownKernel::traverse(visitproc visit, void* arg) const {
  if (autograd != nullptr) {
    if (const int stop = autograd->traverse(visit, arg); stop != 0) {
      return stop;
    }
  }
  return backend == nullptr ? 0 : backend->traverse(visit, arg);
}

void KnownKernels::clear() {
  // Emptied before the Python objects die: their finalisers may call the operator.
  const auto dying = std::exchange(kernels_, {});
  takes_typed_ = false;
  ++generation_;
}

int KnownKernels::traverse(visitproc visit, void* arg) const {
  for (const auto& kernel : kernels_) {
    if (const int stop = kernel->traverse(visit, arg); stop != 0) {
      return stop;
    }
  }
  return 0;
}

}  // namespace dutyfree::call
