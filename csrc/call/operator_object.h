#pragma once

#include <Python.h>

#include <memory>

#include "call/operator.h"

namespace dutyfree::call {

// `_core.Operator`: the Python object that owns one operator's C++ side. Guarded by the GIL.
struct OperatorObject {
  PyObject_HEAD
  std::unique_ptr<Operator> op;  // null only while the object is being made or cleared
};

extern PyTypeObject* operator_type;  // owned by the module for the life of the process

// Makes the type and adds it to the module. False with a Python error set on failure.
bool add_operator_type(PyObject* module);

// confirm_python_kernels(operator, plain_key, plain, keyed_key, keyed): see torch_compat/python_kernel.h
PyObject* confirm_python_kernels(PyObject* module, PyObject* args);

}  // namespace dutyfree::call
