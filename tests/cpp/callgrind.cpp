// Lets a Python program tell callgrind, which runs it, what to count: see benchmarks/instructions.py. Outside of
// callgrind the requests do nothing.
#include <Python.h>

#include <valgrind/callgrind.h>

namespace {

PyObject* start(PyObject*, PyObject*) {
  CALLGRIND_START_INSTRUMENTATION;
  Py_RETURN_NONE;
}

PyObject* zero(PyObject*, PyObject*) {
  CALLGRIND_ZERO_STATS;
  Py_RETURN_NONE;
}

PyObject* dump(PyObject*, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) {
    return nullptr;
  }
  CALLGRIND_DUMP_STATS_AT(text);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"start", start, METH_NOARGS, "Start to count instructions."},
                         {"zero", zero, METH_NOARGS, "Set the counts to zero."},
                         {"dump", dump, METH_O, "Write the counts to a file of their own, under a name."},
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "dutyfree_callgrind", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_dutyfree_callgrind() { return PyModule_Create(&definition); }
