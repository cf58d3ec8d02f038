#include "observe/seeded_fault.h"

#include <cstdlib>
#include <string_view>

namespace dutyfree::observe {
namespace {

// The names from `first` up to `last`, without it, as a tuple; null with a Python error set on failure.
PyObject* names_between(std::size_t first, std::size_t last) {
  PyObject* names = PyTuple_New(static_cast<Py_ssize_t>(last - first));
  for (std::size_t index = first; names != nullptr && index < last; ++index) {
    PyObject* name = PyUnicode_FromString(kFaultNames[index]);
    if (name == nullptr) {
      Py_CLEAR(names);
      break;
    }
    PyTuple_SET_ITEM(names, static_cast<Py_ssize_t>(index - first), name);
  }
  return names;
}

PyObject* seeded_faults(PyObject*, PyObject*) {
  const auto first_memory_fault = static_cast<std::size_t>(kFirstMemoryFault);
  return Py_BuildValue("NN", names_between(1, first_memory_fault),
                       names_between(first_memory_fault, kFaultNames.size()));
}

PyMethodDef functions[] = {
    {"seeded_faults", seeded_faults, METH_NOARGS,
     "The names that DUTYFREE_FAULT may have: those that change what a call does, those that a sanitizer sees."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool choose_seeded_fault(PyObject* module) {
  const char* given = std::getenv("DUTYFREE_FAULT");
  const std::string_view chosen = given == nullptr ? "" : given;
  for (std::size_t index = 0; index < kFaultNames.size(); ++index) {
    if (chosen == kFaultNames[index]) {
      seeded_fault = static_cast<Fault>(index);
      return PyModule_AddFunctions(module, functions) == 0;
    }
  }
  PyErr_Format(PyExc_ImportError,
               "DUTYFREE_FAULT=%s is no fault that can be seeded; csrc/observe/seeded_fault.h lists them", given);
  return false;
}

}  // namespace dutyfree::observe
