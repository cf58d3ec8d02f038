#pragma once

#include <Python.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <string>
#include <utility>
#include <vector>

#include "call/arguments.h"
#include "py_ref.h"

// Python values for the C++ tests, and calls made of them. Every function needs the GIL.
namespace dutyfree::testing {

inline PyRef tensor(at::Tensor value = at::ones({2})) { return PyRef::steal(THPVariable_Wrap(value)); }
inline PyRef integer(long long value) { return PyRef::steal(PyLong_FromLongLong(value)); }
inline PyRef real(double value) { return PyRef::steal(PyFloat_FromDouble(value)); }
inline PyRef text(const char* value) { return PyRef::steal(PyUnicode_FromString(value)); }
inline PyRef none() { return PyRef::borrow(Py_None); }

inline PyRef evaluate(const std::string& expression) {
  const PyRef globals = PyRef::steal(PyDict_New());
  PyDict_SetItemString(globals.get(), "__builtins__", PyEval_GetBuiltins());
  PyRef result = PyRef::steal(PyRun_String(expression.c_str(), Py_eval_input, globals.get(), globals.get()));
  if (!result) {
    PyErr_Print();
  }
  return result;
}

inline std::string repr(PyObject* object) {
  const PyRef shown = PyRef::steal(PyObject_Repr(object));
  return PyUnicode_AsUTF8(shown.get());
}

// The signature of a schema: "(Tensor x, int n) -> Tensor".
inline call::Signature compiled(const std::string& schema) {
  return *call::Signature::compile(torch::jit::parseSchema("test::op" + schema));
}

// A vectorcall's arguments: positional values, then keyword ones. Keeps them alive.
class Call {
 public:
  Call& positional(PyRef value) {
    values_.push_back(value.get());
    owned_.push_back(std::move(value));
    ++positional_;
    return *this;
  }
  Call& keyword(const char* name, PyRef value) {
    PyRef interned = PyRef::steal(PyUnicode_InternFromString(name));
    names_.push_back(interned.get());
    owned_.push_back(std::move(interned));
    values_.push_back(value.get());
    owned_.push_back(std::move(value));
    return *this;
  }
  call::CallArguments arguments() {
    if (!names_.empty()) {
      keywords_ = PyRef::steal(PyTuple_New(static_cast<Py_ssize_t>(names_.size())));
      for (std::size_t index = 0; index < names_.size(); ++index) {
        Py_INCREF(names_[index]);
        PyTuple_SET_ITEM(keywords_.get(), static_cast<Py_ssize_t>(index), names_[index]);
      }
    }
    return {.values = values_.data(), .positional = positional_, .keywords = keywords_.get()};
  }

 private:
  std::vector<PyRef> owned_;
  std::vector<PyObject*> values_;
  std::vector<PyObject*> names_;
  PyRef keywords_;
  std::size_t positional_ = 0;
};

}  // namespace dutyfree::testing
