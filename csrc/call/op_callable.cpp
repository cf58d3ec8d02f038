#include "call/op_callable.h"

#include <structmember.h>

#include "call/arguments.h"
#include "call/boxed.h"
#include "call/dispatch_walk.h"
#include "call/running_call.h"

namespace dutyfree::call {

PyTypeObject* op_callable_type = nullptr;

namespace {

using observe::Path;

enum class Outcome : std::uint8_t {
  Made,       // the call was made; `*result` is what came of it
  PyTorchs,   // PyTorch has to make it
  FitsNoWay,  // so has PyTorch, and it won't: the arguments don't fit the schema, whatever is converted
};

bool fits_no_way(const Decision& decision) {
  return decision.reason == observe::Reason::ArgumentCount || decision.reason == observe::Reason::ArgumentName ||
         decision.reason == observe::Reason::ArgumentMismatch;
}

// Decides and, where the call is ours to make, makes it.
Outcome try_operator(Operator& op, const CallArguments& call, PyObject** result) {
  const torch_compat::ThreadState& thread = torch_compat::ThreadState::here();
  for (;;) {
    CallValues values;
    const Decision decision = decide(op, call, thread, values);
    const bool runs_body = decision.path == Path::Direct || decision.path == Path::Autograd;
    if (runs_body && decision.function == nullptr) [[unlikely]] {
      const auto backend = decision.backend->shared_from_this();
      if (!backend->refresh()) {
        *result = nullptr;
        return Outcome::Made;
      }
      continue;  // Python code ran: everything may be different
    }
    op.counters().count(decision.path, decision.reason);
    if (runs_body) [[likely]] {
      *result = run_decided(op, decision, thread, values.bound);
      return Outcome::Made;
    }
    if (decision.path == Path::Boxed) {
      *result = run_boxed(op, values.boxed);
      return Outcome::Made;
    }
    return fits_no_way(decision) ? Outcome::FitsNoWay : Outcome::PyTorchs;
  }
}

// The later overloads of a packet, in PyTorch's order. One that may fit by a conversion ends the search: PyTorch would
// take it.
[[gnu::noinline]] Outcome try_later(const OpCallable& callable, const CallArguments& call, PyObject** result) {
  const PyRef operators = PyRef::borrow(callable.later);
  Outcome outcome = Outcome::FitsNoWay;
  for (Py_ssize_t index = 0; outcome == Outcome::FitsNoWay && index < PyTuple_GET_SIZE(operators.get()); ++index) {
    outcome =
        try_operator(*reinterpret_cast<OperatorObject*>(PyTuple_GET_ITEM(operators.get(), index))->op, call, result);
  }
  return outcome;
}

// Whether the call was made; `*result` is what came of it.
bool try_call(const OpCallable& callable, const CallArguments& call, PyObject** result) {
  Outcome outcome = try_operator(*callable.owner->op, call, result);
  if (outcome == Outcome::FitsNoWay && callable.later != nullptr) [[unlikely]] {
    outcome = try_later(callable, call, result);
  }
  return outcome == Outcome::Made;
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
    self->vectorcall = call_with_vector;
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

PyObject* call_with_vector(PyObject* op_callable, PyObject* const* args, std::size_t nargsf, PyObject* keywords) {
  auto* callable = reinterpret_cast<OpCallable*>(op_callable);
  if (callable->auditor != nullptr) [[unlikely]] {
    return PyObject_Vectorcall(callable->auditor, args, nargsf, keywords);
  }
  const CallArguments call{
      .values = args, .positional = static_cast<std::size_t>(PyVectorcall_NARGS(nargsf)), .keywords = keywords};
  PyObject* result = nullptr;
  if (try_call(*callable, call, &result)) [[likely]] {
    return result;
  }
  return PyObject_Vectorcall(callable->pytorch, args, nargsf, keywords);
}

PyObject* call_with_tuple(PyObject* op_callable, PyObject* args, PyObject* kwargs) {
  auto* callable = reinterpret_cast<OpCallable*>(op_callable);
  if (callable->auditor != nullptr) [[unlikely]] {
    return PyObject_Call(callable->auditor, args, kwargs);
  }
  const CallArguments call{.values = &PyTuple_GET_ITEM(args, 0),
                           .positional = static_cast<std::size_t>(PyTuple_GET_SIZE(args)),
                           .keyword_dict = kwargs};
  PyObject* result = nullptr;
  if (try_call(*callable, call, &result)) [[likely]] {
    return result;
  }
  return PyObject_Call(callable->pytorch, args, kwargs);
}

}  // namespace dutyfree::call
