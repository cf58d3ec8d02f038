#include "seeded_fault.h"

#include <array>
#include <cstdlib>
#include <string_view>

namespace dutyfree {
namespace {

#define DUTYFREE_TEXT(name, text) text,
constexpr std::array kBehaviourFaults = {DUTYFREE_BEHAVIOUR_FAULTS(DUTYFREE_TEXT)};
constexpr std::array kMemoryFaults = {DUTYFREE_MEMORY_FAULTS(DUTYFREE_TEXT)};
#undef DUTYFREE_TEXT

// The names as a tuple; null with a Python error set on failure.
template <std::size_t Count>
PyObject* as_tuple(const std::array<const char*, Count>& names) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(Count));
  for (std::size_t index = 0; tuple != nullptr && index < Count; ++index) {
    PyObject* name = PyUnicode_FromString(names[index]);
    if (name == nullptr) {
      Py_CLEAR(tuple);
      break;
    }
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(index), name);
  }
  return tuple;
}

PyObject* seeded_faults(PyObject*, PyObject*) {
  return Py_BuildValue("NN", as_tuple(kBehaviourFaults), as_tuple(kMemoryFaults));
}

PyMethodDef functions[] = {
    {"seeded_faults", seeded_faults, METH_NOARGS,
     "The names that DUTYFREE_FAULT may have: those that change what a call does, those that a sanitizer sees."},
    {nullptr, nullptr, 0, nullptr}};

// None for an unknown name.
Fault fault_called(std::string_view chosen) {
#define DUTYFREE_COMPARE(name, text) \
  if (chosen == (text)) {            \
    return Fault::name;              \
  }
  DUTYFREE_BEHAVIOUR_FAULTS(DUTYFREE_COMPARE)
  DUTYFREE_MEMORY_FAULTS(DUTYFREE_COMPARE)
#undef DUTYFREE_COMPARE
  return Fault::None;
}

}  // namespace

bool choose_seeded_fault(PyObject* module) {
  const char* chosen = std::getenv("DUTYFREE_FAULT");
  if (chosen != nullptr && *chosen != '\0') {
    seeded_fault = fault_called(chosen);
    if (seeded_fault == Fault::None) {
      PyErr_Format(PyExc_ImportError,
                   "DUTYFREE_FAULT=%s is no fault that can be seeded; csrc/seeded_fault.h lists them", chosen);
      return false;
    }
  }
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace dutyfree
