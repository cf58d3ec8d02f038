#pragma once

#include <Python.h>

#include "call/operator_object.h"

namespace dutyfree::call {

// `_core.OpCallable`: what stands in an OpOverload's (or packet's) `_op`. It runs the direct path and leaves the rest
// to the callable that was there before; in all else (hash, attributes) it is that callable. Guarded by the GIL.
struct OpCallable {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* pytorch;      // owned: the callable that was there before
  OperatorObject* owner;  // owned: the operator
  // Owned, a tuple of the operators that PyTorch tries next where the arguments don't fit this one: the later overloads
  // of a packet, in its order. Null where there are none.
  PyObject* later;
  PyObject* auditor;  // owned: called instead, see audit.py; null but under DUTYFREE=audit
  PyObject* weak_references;
};

extern PyTypeObject* op_callable_type;  // owned by the module for the life of the process

// Makes the type and adds it to the module. False with a Python error set on failure.
bool add_op_callable_type(PyObject* module);

inline bool is_op_callable(PyObject* object) { return Py_TYPE(object) == op_callable_type; }

}  // namespace dutyfree::call
