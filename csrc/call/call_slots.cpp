#include "call/call_slots.h"

#include <structmember.h>

#include <array>
#include <cstdint>
#include <unordered_map>

#include "call/dict_watch.h"
#include "call/make_call.h"

namespace dutyfree::call {
namespace {

// One patched type. Borrowed: OpOverload and OpOverloadPacket live as long as the process.
struct PatchedType {
  PyTypeObject* type = nullptr;
  ternaryfunc original = nullptr;
};
PatchedType overload;
PatchedType packet;
PatchedType definition;
// Interned "_op" and "_opoverload"; owned for the life of the process.
PyObject* op_name = nullptr;
PyObject* overload_name = nullptr;
PyTypeObject* call_target_type = nullptr;

#if PY_VERSION_HEX < 0x030C0000
// Where an object has its dict. CPython 3.11 keeps it three words before the object where the class lets it, and what
// _PyObject_GetDictPtr does beyond reading that is to make the dict if there is none yet.
PyObject** dict_of(PyObject* self) {
#if PY_VERSION_HEX >= 0x030B0000
  if ((Py_TYPE(self)->tp_flags & Py_TPFLAGS_MANAGED_DICT) != 0) [[likely]] {
    PyObject** dict = reinterpret_cast<PyObject**>(self) - 3;
    if (*dict != nullptr) [[likely]] {
      return dict;
    }
  }
#endif
  return _PyObject_GetDictPtr(self);
}
#endif

// An instance attribute, read anew on every call, a new reference; null without a Python error where there is none. Up
// to CPython 3.11 an instance's dict carries a number that tells this state of this dict from every other (see
// DictWatch), so one comparison stands for the look-up.
class AttributeReader {
 public:
  [[gnu::always_inline]] PyRef read(PyObject* self, PyObject* name) {
#if PY_VERSION_HEX < 0x030C0000
    PyObject** dict = dict_of(self);
    if (dict != nullptr && *dict != nullptr) [[likely]] {
      const std::uint64_t version = DictWatch::version(*dict);
      if (version != version_) [[unlikely]] {
        value_ = PyDict_GetItemWithError(*dict, name);
        version_ = value_ == nullptr ? 0 : version;
      }
      if (value_ != nullptr) [[likely]] {
        return PyRef::borrow(value_);
      }
    }
#endif
    PyObject* value = PyObject_GenericGetAttr(self, name);
    if (value == nullptr) [[unlikely]] {
      PyErr_Clear();
    }
    return PyRef::steal(value);
  }

 private:
  // The dict in state `version_` owns `value_`, and no other dict ever has that version.
  std::uint64_t version_ = 0;
  PyObject* value_ = nullptr;
};

// Two objects that share a reader cost each other a look-up, no more; one object is always asked for the same name.
// Guarded by the GIL.
std::array<AttributeReader, 256> readers;

[[gnu::always_inline]] inline PyRef attribute(PyObject* self, PyObject* name) {
  return readers[(reinterpret_cast<std::uintptr_t>(self) >> 4U) % readers.size()].read(self, name);
}

// Asks, when an operator without our callable is called for the first time, whether it should have one. Guarded by the
// GIL.
class FirstCalls {
 public:
  void ask(PyRef ask) {
    const auto dying = std::exchange(asked_, {});
    ask_ = std::move(ask);
  }

  // The `_op` to call: a new one if that was the answer.
  [[gnu::noinline]] PyRef op_of(PyObject* self, PyRef op) {
    if (!ask_ || !asked_.try_emplace(op.get(), PyRef::borrow(op.get())).second) {
      return op;
    }
    const PyRef ask = PyRef::borrow(ask_.get());
    const PyRef held = PyRef::borrow(self);  // what is asked may take it from whoever called it
    const PyRef answer = PyRef::steal(PyObject_CallOneArg(ask.get(), self));
    if (!answer) {
      PyErr_WriteUnraisable(ask.get());  // the call itself is still PyTorch's to make
    }
    PyRef present = attribute(self, op_name);
    return present ? std::move(present) : std::move(op);
  }

 private:
  PyRef ask_;  // callable(OpOverload or OpOverloadPacket), or nothing
  // The callables whose operators were asked about, by address; they are held, so that no other one gets the address.
  std::unordered_map<PyObject*, PyRef> asked_;
};
FirstCalls& first_calls() {
  static auto* calls = new FirstCalls();
  return *calls;
}

[[gnu::always_inline]] inline PyRef current_op(PyObject* self) {
  PyRef op = attribute(self, op_name);
  if (op && !is_op_callable(op.get())) [[unlikely]] {
    return first_calls().op_of(self, std::move(op));
  }
  return op;
}

PyObject* overload_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  const PyRef op = current_op(self);
  if (!op) [[unlikely]] {
    return overload.original(self, args, kwargs);
  }
  if (is_op_callable(op.get())) [[likely]] {
    return call_with_tuple(op.get(), args, kwargs);
  }
  return PyObject_Call(op.get(), args, kwargs);
}

// A packet's own __call__ also looks for script objects, so only packets with our callable skip it.
PyObject* packet_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  const PyRef op = current_op(self);
  if (!op || !is_op_callable(op.get())) {
    return packet.original(self, args, kwargs);
  }
  return call_with_tuple(op.get(), args, kwargs);
}

bool is_plain_overload(PyObject* target) {
  return Py_TYPE(target) == overload.type && overload.type->tp_call == overload_call;
}

PyObject* definition_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  const PyRef target = attribute(self, overload_name);
  return target && is_plain_overload(target.get()) ? overload_call(target.get(), args, kwargs)
                                                   : definition.original(self, args, kwargs);
}

void patch(PatchedType& patched, PyTypeObject* type, ternaryfunc replacement) {
  if (type->tp_call == replacement) {
    return;
  }
  patched = {type, type->tp_call};
  type->tp_call = replacement;
  PyType_Modified(type);
}

// What was found there is kept: calls that came in by our function may be under way in other threads.
void unpatch(const PatchedType& patched, ternaryfunc replacement) {
  // Someone who patched __call__ after us has taken the slot over already.
  if (patched.type != nullptr && patched.type->tp_call == replacement) {
    patched.type->tp_call = patched.original;
    PyType_Modified(patched.type);
  }
}

// --- _core.CallTarget ------------------------------------------------------------------------------------------------

struct CallTarget {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* target;  // owned: the OpOverload; null until it is set
};

// Someone assigned `__call__` on the class: CPython then put its own function into tp_call, which runs that.
[[gnu::cold]] PyObject* call_patched(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* keywords) {
  const Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
  const PyRef tuple = PyRef::steal(PyTuple_New(positional));
  const PyRef dict = PyRef::steal(keywords == nullptr ? nullptr : PyDict_New());
  if (!tuple || (keywords != nullptr && !dict)) {
    return nullptr;
  }
  for (Py_ssize_t index = 0; index < positional; ++index) {
    Py_INCREF(args[index]);
    PyTuple_SET_ITEM(tuple.get(), index, args[index]);
  }
  for (Py_ssize_t index = 0; dict && index < PyTuple_GET_SIZE(keywords); ++index) {
    if (PyDict_SetItem(dict.get(), PyTuple_GET_ITEM(keywords, index), args[positional + index]) < 0) {
      return nullptr;
    }
  }
  return Py_TYPE(self)->tp_call(self, tuple.get(), dict.get());
}

PyObject* call_target_vectorcall(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject* keywords) {
  if (Py_TYPE(self)->tp_call != PyVectorcall_Call) [[unlikely]] {
    return call_patched(self, args, nargsf, keywords);
  }
  PyObject* target = reinterpret_cast<CallTarget*>(self)->target;
  if (target == nullptr) [[unlikely]] {
    PyErr_Format(PyExc_RuntimeError, "%s is not registered yet", Py_TYPE(self)->tp_name);
    return nullptr;
  }
  if (is_plain_overload(target)) [[likely]] {
    const PyRef op = current_op(target);
    if (op) [[likely]] {
      return is_op_callable(op.get()) ? call_with_vector(op.get(), args, nargsf, keywords)
                                      : PyObject_Vectorcall(op.get(), args, nargsf, keywords);
    }
  }
  // Held from here on, since what runs may give the object another target. The reads above run no Python, but for the
  // first call of an operator, which holds it.
  const PyRef held = PyRef::borrow(target);
  return PyObject_Vectorcall(held.get(), args, nargsf, keywords);
}

PyObject* call_target_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) {
    reinterpret_cast<CallTarget*>(self)->vectorcall = call_target_vectorcall;
  }
  return self;
}

int call_target_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(reinterpret_cast<CallTarget*>(object)->target);
  return 0;
}

int call_target_clear(PyObject* object) {
  Py_CLEAR(reinterpret_cast<CallTarget*>(object)->target);
  return 0;
}

void call_target_dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  Py_CLEAR(reinterpret_cast<CallTarget*>(object)->target);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef call_target_members[] = {
    {"_call_target", T_OBJECT, offsetof(CallTarget, target), 0, "The OpOverload that a call goes to."},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot call_target_slots[] = {{Py_tp_new, reinterpret_cast<void*>(call_target_new)},
                                   {Py_tp_dealloc, reinterpret_cast<void*>(call_target_dealloc)},
                                   {Py_tp_traverse, reinterpret_cast<void*>(call_target_traverse)},
                                   {Py_tp_clear, reinterpret_cast<void*>(call_target_clear)},
                                   {Py_tp_members, call_target_members},
                                   {0, nullptr}};

PyType_Spec call_target_spec = {"dutyfree._core.CallTarget", sizeof(CallTarget), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, call_target_slots};

}  // namespace

PyObject* install_call_slots(PyObject*, PyObject* args) {
  PyObject *overload_type = nullptr, *packet_type = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &overload_type, &PyType_Type, &packet_type)) {
    return nullptr;
  }
  // Not only once: a patch of `__call__` that has come and gone has taken the slot with it.
  patch(overload, reinterpret_cast<PyTypeObject*>(overload_type), overload_call);
  patch(packet, reinterpret_cast<PyTypeObject*>(packet_type), packet_call);
  Py_RETURN_NONE;
}

PyObject* install_definition_slot(PyObject*, PyObject* type) {
  if (!PyType_Check(type)) {
    PyErr_SetString(PyExc_TypeError, "install_definition_slot takes a class");
    return nullptr;
  }
  patch(definition, reinterpret_cast<PyTypeObject*>(type), definition_call);
  Py_RETURN_NONE;
}

PyObject* remove_definition_slot(PyObject*, PyObject*) {
  unpatch(definition, definition_call);
  Py_RETURN_NONE;
}

PyObject* ask_at_first_calls(PyObject*, PyObject* ask) {
  first_calls().ask(ask == Py_None ? PyRef() : PyRef::borrow(ask));
  Py_RETURN_NONE;
}

PyObject* remove_call_slots(PyObject*, PyObject*) {
  unpatch(overload, overload_call);
  unpatch(packet, packet_call);
  Py_RETURN_NONE;
}

bool add_call_target_type(PyObject* module) {
  op_name = PyUnicode_InternFromString("_op");
  overload_name = PyUnicode_InternFromString("_opoverload");
  call_target_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&call_target_spec));
  return op_name != nullptr && overload_name != nullptr && call_target_type != nullptr &&
         PyModule_AddType(module, call_target_type) == 0;
}

PyObject* enable_vectorcall(PyObject*, PyObject* cls) {
  if (!PyType_Check(cls) || PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(cls), call_target_type) == 0) {
    PyErr_SetString(PyExc_TypeError, "enable_vectorcall takes a subclass of CallTarget");
    return nullptr;
  }
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  type->tp_vectorcall_offset = offsetof(CallTarget, vectorcall);
  type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  type->tp_call = PyVectorcall_Call;
  PyType_Modified(type);
  Py_RETURN_NONE;
}

}  // namespace dutyfree::call
