#pragma once

#include <Python.h>

namespace dutyfree::call {

// Adds the `apply` of an operator's nodes to the module, in two forms: for schemas without and with lists of tensors.
bool add_backward(PyObject* module);

}  // namespace dutyfree::call
