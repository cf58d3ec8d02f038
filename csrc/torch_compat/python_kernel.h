#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

#include "py_ref.h"

// The Python function inside a kernel that Library.impl registered. PyTorch keeps it in a class of its own, without a
// way to ask for it.
namespace dutyfree::torch_compat {

struct PythonKernel {
  PyRef function;
  bool with_keyset = false;  // it gets the dispatch key set as its first argument
  bool with_op = false;      // it gets the operator as well
};

// Whether this is a kernel of that class, by its type's name.
bool is_python_kernel(const c10::KernelFunction& kernel);

// The function in such a kernel, or nothing: in any other, and before confirm_python_kernels found the class to be
// laid out as it is known here. Needs the GIL.
std::optional<PythonKernel> python_kernel(const c10::KernelFunction& kernel);

// Compares what is read from two kernels with what was registered: `plain`, and `keyed` with its key set. From then on
// python_kernel answers. False where this torch lays the class out in another way.
bool confirm_python_kernels(const c10::KernelFunction& plain_kernel,
                            PyObject* plain,
                            const c10::KernelFunction& keyed_kernel,
                            PyObject* keyed);

}  // namespace dutyfree::torch_compat
