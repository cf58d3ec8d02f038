#include "torch_compat/torch_function.h"

#include "py_ref.h"

namespace dutyfree::torch_compat {
namespace {

// torch._C._has_torch_function_unary: libtorch_python exports no C++ function for it. Owned for the life of the
// process.
PyObject* has_torch_function = nullptr;

}  // namespace

bool overrides_torch_function(PyObject* tensor) {
  const PyRef answer = PyRef::steal(PyObject_CallOneArg(has_torch_function, tensor));
  if (!answer) {
    PyErr_Clear();
    return true;  // PyTorch meets the same error, and words it
  }
  return answer.get() == Py_True;
}

bool initialise_torch_function() {
  const PyRef torch_c = PyRef::steal(PyImport_ImportModule("torch._C"));
  has_torch_function = torch_c ? PyObject_GetAttrString(torch_c.get(), "_has_torch_function_unary") : nullptr;
  return has_torch_function != nullptr;
}

}  // namespace dutyfree::torch_compat
