#pragma once

#include <Python.h>

#include "py_ref.h"

namespace dutyfree::call {

// torch's `Function.apply` and its nodes' `apply` are Python, which the AUTOGRAD path skips. Whoever puts another
// function in their place wants to see every call, so both are looked at each time. Everything here needs the GIL.

// Whether torch.autograd.Function.apply is the one that was there when dutyfree was imported.
bool function_apply_stands();
// Whether the nodes' BackwardCFunction.apply is.
bool node_apply_stands();
// What is there now, or null with a Python error set.
PyRef node_apply_now();

// watch_apply(Function, BackwardCFunction): called once. Until then nothing stands.
PyObject* watch_apply(PyObject* module, PyObject* args);

}  // namespace dutyfree::call
