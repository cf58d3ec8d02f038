#include "call/apply_watch.h"

namespace dutyfree::call {
namespace {

// Interned "apply"; owned for the life of the process.
PyObject* apply_name = nullptr;

// One class and its `apply` as it should be. Owned for the life of the process; written once.
class WatchedApply {
 public:
  void start(PyTypeObject* type) {
    type_ = reinterpret_cast<PyTypeObject*>(Py_NewRef(reinterpret_cast<PyObject*>(type)));
    expected_ = Py_XNewRef(present());
  }
  // Where nobody started to watch, torch's own had been replaced before: the calls are not ours at all.
  bool stands() const { return expected_ != nullptr && present() == expected_; }
  PyTypeObject* type() const { return type_; }

 private:
  PyObject* present() const { return PyDict_GetItemWithError(type_->tp_dict, apply_name); }

  PyTypeObject* type_ = nullptr;
  PyObject* expected_ = nullptr;
};

WatchedApply function_apply;
WatchedApply node_apply;

}  // namespace

bool function_apply_stands() { return function_apply.stands(); }

bool node_apply_stands() { return node_apply.stands(); }

PyRef node_apply_now() {
  return PyRef::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(node_apply.type()), apply_name));
}

PyObject* watch_apply(PyObject*, PyObject* args) {
  PyObject *function = nullptr, *node = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &function, &PyType_Type, &node)) {
    return nullptr;
  }
  apply_name = PyUnicode_InternFromString("apply");
  if (apply_name == nullptr) {
    return nullptr;
  }
  function_apply.start(reinterpret_cast<PyTypeObject*>(function));
  node_apply.start(reinterpret_cast<PyTypeObject*>(node));
  Py_RETURN_NONE;
}

}  // namespace dutyfree::call
