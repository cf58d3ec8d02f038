#pragma once

#include <Python.h>

#include "call/arguments.h"
#include "call/dispatch_walk.h"
#include "call/operator.h"

namespace dutyfree::call {

// `_core.Operator`: the Python object that owns one operator's C++ side. Guarded by the GIL.
struct OperatorObject {
  PyObject_HEAD
  std::unique_ptr<Operator> op;  // null only while the object is being made or cleared
};

// `_core.OpCallable`: what stands in an OpOverload's (or packet's) `_op`. It runs the direct path and leaves the rest
// to the callable that was there before; in all else (hash, attributes) it is that callable. Guarded by the GIL.
struct OpCallable {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* pytorch;      // owned: the callable that was there before
  OperatorObject* owner;  // owned: the operator
  PyObject* weak_references;
};

extern PyTypeObject* operator_type;     // owned by the module for the life of the process
extern PyTypeObject* op_callable_type;  // the same

// Makes both types and adds them to the module. False with a Python error set on failure.
bool add_op_callable_types(PyObject* module);

inline bool is_op_callable(PyObject* object) { return Py_TYPE(object) == op_callable_type; }

// Calls it as vectorcall does.
PyObject* call_with_vector(PyObject* op_callable, PyObject* const* args, std::size_t nargsf, PyObject* keywords);
// Calls it as tp_call does: positional arguments in a tuple, keywords in a dict or null.
PyObject* call_with_tuple(PyObject* op_callable, PyObject* args, PyObject* kwargs);

}  // namespace dutyfree::call
