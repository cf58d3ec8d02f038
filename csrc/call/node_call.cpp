#include "call/node_call.h"

namespace dutyfree::call {

PyObject* metadata_name = nullptr;

namespace {

PyTypeObject* node_call_type = nullptr;

NodeCall& node_call(PyObject* object) { return *reinterpret_cast<NodeCall*>(object); }

void node_call_dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  Py_XDECREF(node_call(object).keywords);
  node_call(object).inputs.~TensorLists();
  node_call(object).outputs.~TensorLists();
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* input_spec(PyObject* object, void*) { return node_call(object).inputs.as_tree_spec().release(); }
PyObject* output_spec(PyObject* object, void*) { return node_call(object).outputs.as_tree_spec().release(); }
PyObject* result_is_tuple(PyObject* object, void*) {
  return PyBool_FromLong(node_call(object).result_is_tuple ? 1 : 0);
}

// By the names that PyTorch's own Python code uses, since a compiled backward runs that.
PyGetSetDef node_call_getset[] = {
    {"input_spec", input_spec, nullptr, "Where the inputs have lists of tensors, as a TreeSpec.", nullptr},
    {"output_spec", output_spec, nullptr, "The same of the outputs.", nullptr},
    {"result_is_tuple", result_is_tuple, nullptr, "Whether the body returned a tuple.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot node_call_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(node_call_dealloc)}, {Py_tp_getset, node_call_getset}, {0, nullptr}};

PyType_Spec node_call_spec = {"dutyfree._core.NodeCall", sizeof(NodeCall), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, node_call_slots};

}  // namespace

PyRef make_node_call(const RunningCall& call) {
  PyRef object = PyRef::steal(node_call_type->tp_alloc(node_call_type, 0));
  if (object) {
    NodeCall& node = node_call(object.get());
    new (&node.inputs) TensorLists();
    new (&node.outputs) TensorLists();
    node.call = &call;
  }
  return object;
}

NodeCall* as_node_call(PyObject* object) {
  return Py_TYPE(object) == node_call_type ? reinterpret_cast<NodeCall*>(object) : nullptr;
}

bool add_node_call_type(PyObject* module) {
  metadata_name = PyUnicode_InternFromString("_pt_metadata");
  node_call_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&node_call_spec));
  return metadata_name != nullptr && node_call_type != nullptr && PyModule_AddType(module, node_call_type) == 0;
}

}  // namespace dutyfree::call
