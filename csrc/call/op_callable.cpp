#include "call/op_callable.h"

#include <structmember.h>

#include "call/make_call.h"

namespace dutyfree::call {

PyTypeObject* op_callable_type = nullptr;

namespace {

PyObject* op_callable_vectorcall(PyObject* object, PyObject* const* args, std::size_t nargsf, PyObject* keywords) {
  return call_with_vector(object, args, nargsf, keywords);
}

PyObject* op_callable_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"pytorch", "operator", "later", "auditor", nullptr};
  PyObject *pytorch = nullptr, *owner = nullptr, *later = nullptr, *auditor = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!|O!O", const_cast<char**>(names), &pytorch, operator_type, &owner,
                                   &PyTuple_Type, &later, &auditor)) {
    return nullptr;
  }
  for (Py_ssize_t index = 0; later != nullptr && index < PyTuple_GET_SIZE(later); ++index) {
    if (Py_TYPE(PyTuple_GET_ITEM(later, index)) != operator_type) {
      PyErr_SetString(PyExc_TypeError, "later: expected a tuple of Operator objects");
      return nullptr;
    }
  }
  auto* self = reinterpret_cast<OpCallable*>(type->tp_alloc(type, 0));
  if (self != nullptr) {
    self->vectorcall = op_callable_vectorcall;
    self->pytorch = Py_NewRef(pytorch);
    self->owner = reinterpret_cast<OperatorObject*>(Py_NewRef(owner));
    self->later = later == nullptr || PyTuple_GET_SIZE(later) == 0 ? nullptr : Py_NewRef(later);
    self->auditor = auditor == Py_None ? nullptr : Py_NewRef(auditor);
  }
  return reinterpret_cast<PyObject*>(self);
}

int op_callable_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<OpCallable*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->pytorch);
  Py_VISIT(self->owner);
  Py_VISIT(self->later);
  Py_VISIT(self->auditor);
  return 0;
}

// No tp_clear: a callable must stay callable for as long as anyone can reach it, and the operator it points to breaks
// the cycles.
void op_callable_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<OpCallable*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->weak_references != nullptr) {
    PyObject_ClearWeakRefs(object);
  }
  Py_XDECREF(self->pytorch);
  Py_XDECREF(reinterpret_cast<PyObject*>(self->owner));
  Py_XDECREF(self->later);
  Py_XDECREF(self->auditor);
  type->tp_free(object);
  Py_DECREF(type);
}

Py_hash_t op_callable_hash(PyObject* object) { return PyObject_Hash(reinterpret_cast<OpCallable*>(object)->pytorch); }

PyObject* op_callable_getattro(PyObject* object, PyObject* name) {
  PyObject* own = PyObject_GenericGetAttr(object, name);
  if (own != nullptr || !PyErr_ExceptionMatches(PyExc_AttributeError)) {
    return own;
  }
  PyErr_Clear();
  return PyObject_GetAttr(reinterpret_cast<OpCallable*>(object)->pytorch, name);
}

int op_callable_setattro(PyObject* object, PyObject* name, PyObject* value) {
  auto* self = reinterpret_cast<OpCallable*>(object);
  return value == nullptr ? PyObject_DelAttr(self->pytorch, name) : PyObject_SetAttr(self->pytorch, name, value);
}

PyObject* op_callable_repr(PyObject* object) {
  return PyUnicode_FromFormat("<dutyfree callable of %s>",
                              reinterpret_cast<OpCallable*>(object)->owner->op->name().c_str());
}

// Copying and pickling are the other callable's, whose error names what can't be copied.
PyObject* op_callable_reduce_ex(PyObject* object, PyObject* protocol) {
  return PyObject_CallMethod(reinterpret_cast<OpCallable*>(object)->pytorch, "__reduce_ex__", "O", protocol);
}

PyMethodDef op_callable_methods[] = {{"__reduce_ex__", op_callable_reduce_ex, METH_O, nullptr},
                                     {nullptr, nullptr, 0, nullptr}};

PyMemberDef op_callable_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(OpCallable, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(OpCallable, weak_references), READONLY, nullptr},
    {"pytorch", T_OBJECT_EX, offsetof(OpCallable, pytorch), READONLY, "The callable that was there before."},
    {"operator", T_OBJECT_EX, offsetof(OpCallable, owner), READONLY, "The operator's C++ side."},
    {"later", T_OBJECT, offsetof(OpCallable, later), READONLY, "Those of a packet's later overloads, or None."},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot op_callable_slots[] = {{Py_tp_new, reinterpret_cast<void*>(op_callable_new)},
                                   {Py_tp_dealloc, reinterpret_cast<void*>(op_callable_dealloc)},
                                   {Py_tp_traverse, reinterpret_cast<void*>(op_callable_traverse)},
                                   {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                   {Py_tp_hash, reinterpret_cast<void*>(op_callable_hash)},
                                   {Py_tp_getattro, reinterpret_cast<void*>(op_callable_getattro)},
                                   {Py_tp_setattro, reinterpret_cast<void*>(op_callable_setattro)},
                                   {Py_tp_repr, reinterpret_cast<void*>(op_callable_repr)},
                                   {Py_tp_methods, op_callable_methods},
                                   {Py_tp_members, op_callable_members},
                                   {0, nullptr}};

PyType_Spec op_callable_spec = {"dutyfree._core.OpCallable", sizeof(OpCallable), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                                op_callable_slots};

}  // namespace

bool add_op_callable_type(PyObject* module) {
  op_callable_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&op_callable_spec));
  return op_callable_type != nullptr && PyModule_AddType(module, op_callable_type) == 0;
}

}  // namespace dutyfree::call
