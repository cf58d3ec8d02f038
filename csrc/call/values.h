#pragma once

#include <Python.h>
#include <torch/csrc/Size.h>

namespace dutyfree::call {

// Whether an exact int has a 64-bit form, the only ints that an IValue holds.
inline bool fits_int64(PyObject* exact_int) {
#if PY_VERSION_HEX < 0x030C0000
  // Two 30-bit digits always fit.
  if (const Py_ssize_t digits = Py_SIZE(exact_int); digits >= -2 && digits <= 2) [[likely]] {
    return true;
  }
#endif
  int overflow = 0;
  (void)PyLong_AsLongLongAndOverflow(exact_int, &overflow);
  return overflow == 0;
}

inline bool is_exact_int64(PyObject* value) { return PyLong_CheckExact(value) && fits_int64(value); }

// The numbers that a Scalar takes without a conversion. Complex ones are PyTorch's.
inline bool is_exact_number(PyObject* value) {
  return PyFloat_CheckExact(value) || PyBool_Check(value) || is_exact_int64(value);
}

// What PySequence_Fast_ITEMS may be used on, and iterates as it is stored.
inline bool is_sequence(PyObject* value) {
  return PyList_CheckExact(value) || PyTuple_CheckExact(value) ||
         Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(&THPSizeType);
}

// The float that PyTorch makes of an int: a new reference, or null without a Python error when memory runs out; the
// caller then leaves the value to PyTorch, which meets the same shortage.
inline PyObject* int_as_float(PyObject* exact_int64) {
  PyObject* converted = PyFloat_FromDouble(static_cast<double>(PyLong_AsLongLong(exact_int64)));
  if (converted == nullptr) {
    PyErr_Clear();
  }
  return converted;
}

}  // namespace dutyfree::call
