#pragma once

#include <Python.h>

namespace dutyfree::torch_compat {

// Whether PyTorch hands a call with this tensor to the tensor's __torch_function__. Asked where no TorchFunctionMode is
// active. May run Python code (a metaclass's look-up). Needs the GIL.
bool overrides_torch_function(PyObject* tensor);

// Finds what the question takes. Called once, when the module is loaded. False with a Python error set on failure.
bool initialise_torch_function();

}  // namespace dutyfree::torch_compat
