#pragma once

#include <Python.h>

namespace dutyfree::nvfp4 {

// Adds to the module what dutyfree.ops asks for. Nothing is registered with PyTorch before it does. False with a Python
// error set where that fails. With the GIL.
bool add_functions(PyObject* module);

}  // namespace dutyfree::nvfp4
