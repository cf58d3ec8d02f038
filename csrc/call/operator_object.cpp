#include "call/operator_object.h"

#include <torch/csrc/Exceptions.h>

#include "call/arguments.h"
#include "call/dispatch_walk.h"

namespace dutyfree::call {

PyTypeObject* operator_type = nullptr;

namespace {

using observe::Path;

Operator& operator_of(PyObject* object) { return *reinterpret_cast<OperatorObject*>(object)->op; }

PyObject* operator_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"name", nullptr};
  const char* name = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s", const_cast<char**>(names), &name)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  auto op = Operator::find(name);
  if (op == nullptr) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) {
    new (&reinterpret_cast<OperatorObject*>(self)->op) std::unique_ptr<Operator>(std::move(op));
  }
  return self;
  END_HANDLE_TH_ERRORS
}

int operator_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  return operator_of(object).kernels().traverse(visit, arg);
}

int operator_clear(PyObject* object) {
  operator_of(object).kernels().clear();
  return 0;
}

void operator_dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  reinterpret_cast<OperatorObject*>(object)->op.~unique_ptr();
  type->tp_free(object);
  Py_DECREF(type);
}

// The kernel registered last for a dispatch key (an alias key too).
const c10::KernelFunction& registered_kernel(const Operator& op, const char* key) {
  return op.entry().kernelForDispatchKey(c10::parseDispatchKey(key));
}

// know_autograd(key, apply or None, definition, flattens_lists)
PyObject* operator_know_autograd(PyObject* object, PyObject* args) {
  const char* key = nullptr;
  PyObject *apply = nullptr, *definition = nullptr;
  int flattens_lists = 0;
  if (!PyArg_ParseTuple(args, "sOOp", &key, &apply, &definition, &flattens_lists)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  KnownKernel known(KnownKernel::Role::Autograd, registered_kernel(operator_of(object), key));
  if (apply != Py_None) {
    known.autograd = std::make_shared<AutogradKernel>();
    known.autograd->apply = PyRef::borrow(apply);
    known.autograd->definition = PyRef::borrow(definition);
    known.autograd->flattens_lists = flattens_lists != 0;
  }
  operator_of(object).kernels().add(std::move(known));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// know_version_bump(key)
PyObject* operator_know_version_bump(PyObject* object, PyObject* args) {
  const char* key = nullptr;
  if (!PyArg_ParseTuple(args, "s", &key)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  operator_of(object).kernels().add(KnownKernel(KnownKernel::Role::ADInplaceOrView,
                                                registered_kernel(operator_of(object), key)));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// know_backend(key, functions, disabled, device_type, default_function, unwrap, judge)
PyObject* operator_know_backend(PyObject* object, PyObject* args) {
  const char* key = nullptr;
  PyObject *functions = nullptr, *disabled = nullptr, *device_type = nullptr, *default_function = nullptr,
           *unwrap = nullptr, *judge = nullptr;
  if (!PyArg_ParseTuple(args, "sO!O!OOOO", &key, &PyDict_Type, &functions, &PySet_Type, &disabled, &device_type,
                        &default_function, &unwrap, &judge)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  KnownKernel known(KnownKernel::Role::Backend, registered_kernel(operator_of(object), key));
  known.backend = std::make_shared<BackendKernel>(BackendKernel::Parts{
      .functions = PyRef::borrow(functions),
      .disabled = PyRef::borrow(disabled),
      .device_type = PyRef::borrow(device_type),
      .default_function = PyRef::borrow(default_function),
      .unwrap = PyRef::borrow(unwrap),
      .judge = PyRef::borrow(judge),
  });
  operator_of(object).kernels().add(std::move(known));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* operator_forget(PyObject* object, PyObject*) {
  operator_of(object).kernels().clear();
  Py_RETURN_NONE;
}

// explain(args, kwargs) -> (path, reason, slot or -1, dispatch key or None)
PyObject* operator_explain(PyObject* object, PyObject* args) {
  PyObject *positional = nullptr, *keywords = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &positional, &PyDict_Type, &keywords)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  BoundArguments arguments;
  const CallArguments call{.values = &PyTuple_GET_ITEM(positional, 0),
                           .positional = static_cast<std::size_t>(PyTuple_GET_SIZE(positional)),
                           .keyword_dict = keywords};
  const Decision decision = decide(operator_of(object), call, torch_compat::ThreadState::here(), arguments);
  const bool keyed = decision.key != c10::DispatchKey::Undefined;
  return Py_BuildValue("ssis", observe::name(decision.path), observe::name(decision.reason), decision.argument,
                       keyed ? c10::toString(decision.key) : nullptr);
  END_HANDLE_TH_ERRORS
}

// counters() -> ({path: calls}, {reason: calls})
PyObject* operator_counters(PyObject* object, PyObject*) {
  const auto& counters = operator_of(object).counters();
  const PyRef paths = PyRef::steal(PyDict_New());
  const PyRef reasons = PyRef::steal(PyDict_New());
  if (!paths || !reasons) {
    return nullptr;
  }
  for (std::size_t index = 0; index < observe::kPathNames.size(); ++index) {
    const PyRef calls = PyRef::steal(PyLong_FromUnsignedLongLong(counters.calls(static_cast<Path>(index))));
    if (!calls || PyDict_SetItemString(paths.get(), observe::kPathNames[index], calls.get()) < 0) {
      return nullptr;
    }
  }
  for (std::size_t index = 1; index < observe::kReasonNames.size(); ++index) {
    const std::uint64_t count = counters.calls(static_cast<observe::Reason>(index));
    if (count == 0) {
      continue;
    }
    const PyRef calls = PyRef::steal(PyLong_FromUnsignedLongLong(count));
    if (!calls || PyDict_SetItemString(reasons.get(), observe::kReasonNames[index], calls.get()) < 0) {
      return nullptr;
    }
  }
  return PyTuple_Pack(2, paths.get(), reasons.get());
}

PyObject* operator_reset_counters(PyObject* object, PyObject*) {
  operator_of(object).counters().reset();
  Py_RETURN_NONE;
}

PyObject* operator_unsupported(PyObject* object, void*) {
  const char* unsupported = operator_of(object).unsupported();
  if (unsupported == nullptr) {
    Py_RETURN_NONE;
  }
  return PyUnicode_FromString(unsupported);
}

PyMethodDef operator_methods[] = {
    {"know_autograd", operator_know_autograd, METH_VARARGS, "custom_op's autograd kernel stands under a key now."},
    {"know_version_bump", operator_know_version_bump, METH_VARARGS, "Its version bump stands under a key now."},
    {"know_backend", operator_know_backend, METH_VARARGS, "Its kernel that runs the body stands under a key now."},
    {"forget", operator_forget, METH_NOARGS, "Forget every kernel: all calls go PyTorch's way from now on."},
    {"explain", operator_explain, METH_VARARGS, "The path that a call would take: (path, reason, slot, key)."},
    {"counters", operator_counters, METH_NOARGS, "Calls by path and by reason."},
    {"reset_counters", operator_reset_counters, METH_NOARGS, "Set every counter to zero."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef operator_getset[] = {
    {"unsupported", operator_unsupported, nullptr, "Why no call can be direct, or None.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot operator_slots[] = {{Py_tp_new, reinterpret_cast<void*>(operator_new)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(operator_dealloc)},
                                {Py_tp_traverse, reinterpret_cast<void*>(operator_traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(operator_clear)},
                                {Py_tp_methods, operator_methods},
                                {Py_tp_getset, operator_getset},
                                {0, nullptr}};

PyType_Spec operator_spec = {"dutyfree._core.Operator", sizeof(OperatorObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, operator_slots};

}  // namespace

bool add_operator_type(PyObject* module) {
  operator_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&operator_spec));
  return operator_type != nullptr && PyModule_AddType(module, operator_type) == 0;
}

}  // namespace dutyfree::call
