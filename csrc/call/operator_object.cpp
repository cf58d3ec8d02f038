#include "call/operator_object.h"

#include <torch/csrc/Exceptions.h>

#include "call/arguments.h"
#include "call/dispatch_walk.h"
#include "torch_compat/python_kernel.h"

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

// The dispatch keys, alias keys too, for which a kernel is registered.
std::vector<c10::DispatchKey> keys_with_kernels(const Operator& op) {
  std::vector<c10::DispatchKey> keys;
  for (auto number = static_cast<std::uint16_t>(c10::DispatchKey::Undefined);
       number <= static_cast<std::uint16_t>(c10::DispatchKey::EndOfAliasKeys); ++number) {
    const auto key = static_cast<c10::DispatchKey>(number);
    if (op.entry().hasKernelForDispatchKey(key)) {
      keys.push_back(key);
    }
  }
  return keys;
}

// registered_kernels() -> [(key, function or None, with_keyset, is_python)]: the kernels in force of every key, alias
// keys too. The function is None for a kernel that is not Python's, and for one that can't be read.
PyObject* operator_registered_kernels(PyObject* object, PyObject*) {
  HANDLE_TH_ERRORS
  const Operator& op = operator_of(object);
  PyRef kernels = PyRef::steal(PyList_New(0));
  if (!kernels) {
    return nullptr;
  }
  for (const c10::DispatchKey key : keys_with_kernels(op)) {
    const c10::KernelFunction& kernel = op.entry().kernelForDispatchKey(key);
    const auto python = torch_compat::python_kernel(kernel);
    const bool readable = python.has_value() && !python->with_op;
    const PyRef item =
        PyRef::steal(Py_BuildValue("(sOOO)", c10::toString(key), readable ? python->function.get() : Py_None,
                                   readable && python->with_keyset ? Py_True : Py_False,
                                   torch_compat::is_python_kernel(kernel) ? Py_True : Py_False));
    if (!item || PyList_Append(kernels.get(), item.get()) < 0) {
      return nullptr;
    }
  }
  return kernels.release();
  END_HANDLE_TH_ERRORS
}

// knows(key) -> bool: the kernel in force of a key is known.
PyObject* operator_knows(PyObject* object, PyObject* args) {
  const char* key = nullptr;
  if (!PyArg_ParseTuple(args, "s", &key)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  const Operator& op = operator_of(object);
  return PyBool_FromLong(static_cast<long>(op.kernels().find(torch_compat::kernel_identity(registered_kernel(op,
                                                                                                             key))) !=
                                           nullptr));
  END_HANDLE_TH_ERRORS
}

// know_body(key, function, disables_dynamo)
PyObject* operator_know_body(PyObject* object, PyObject* args) {
  const char* key = nullptr;
  PyObject* function = nullptr;
  int disables_dynamo = 0;
  if (!PyArg_ParseTuple(args, "sOp", &key, &function, &disables_dynamo)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  KnownKernel known(KnownKernel::Role::Backend, registered_kernel(operator_of(object), key));
  known.backend = std::make_shared<BackendKernel>(PyRef::borrow(function), disables_dynamo != 0);
  operator_of(object).kernels().add(std::move(known));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
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
  if (!PyArg_ParseTuple(args, "sO!O!O!OOO", &key, &PyDict_Type, &functions, &PySet_Type, &disabled, &PyCell_Type,
                        &device_type, &default_function, &unwrap, &judge)) {
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

// know_direct_kernels(): those of dutyfree/op.h that are in force.
PyObject* operator_know_direct_kernels(PyObject* object, PyObject*) {
  HANDLE_TH_ERRORS
  Operator& op = operator_of(object);
  for (const c10::DispatchKey key : keys_with_kernels(op)) {
    op.know_if_direct(op.entry().kernelForDispatchKey(key));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* operator_allow_boxing(PyObject* object, PyObject*) {
  operator_of(object).allow_boxing();
  Py_RETURN_NONE;
}

// by_kernels(backend or None) -> dispatch key or None: what stops a call with plain tensors of that backend on its way
// to a body, as far as kernels do.
PyObject* operator_by_kernels(PyObject* object, PyObject* args) {
  const char* backend = nullptr;
  if (!PyArg_ParseTuple(args, "z", &backend)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  const auto key = backend == nullptr ? c10::DispatchKey::Undefined : c10::parseDispatchKey(backend);
  const Decision decision = decide_by_kernels(operator_of(object), key);
  if (decision.path == Path::Direct) {
    Py_RETURN_NONE;
  }
  return PyUnicode_FromString(c10::toString(decision.key));
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
  CallValues values;
  const CallArguments call{.values = &PyTuple_GET_ITEM(positional, 0),
                           .positional = static_cast<std::size_t>(PyTuple_GET_SIZE(positional)),
                           .keyword_dict = keywords};
  const Decision decision = decide(operator_of(object), call, torch_compat::ThreadState::here(), values);
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
  const Operator& op = operator_of(object);
  const char* unsupported = op.kernels().takes_typed() ? nullptr : op.unsupported();
  if (unsupported == nullptr) {
    Py_RETURN_NONE;
  }
  return PyUnicode_FromString(unsupported);
}

PyMethodDef operator_methods[] = {
    {"know_autograd", operator_know_autograd, METH_VARARGS, "custom_op's autograd kernel stands under a key now."},
    {"know_version_bump", operator_know_version_bump, METH_VARARGS, "Its version bump stands under a key now."},
    {"know_backend", operator_know_backend, METH_VARARGS, "Its kernel that runs the body stands under a key now."},
    {"know_body", operator_know_body, METH_VARARGS, "A kernel that is a Python function stands under a key now."},
    {"know_direct_kernels", operator_know_direct_kernels, METH_NOARGS, "The C++ kernels with a direct entry."},
    {"knows", operator_knows, METH_VARARGS, "Whether the kernel under a key is known."},
    {"registered_kernels", operator_registered_kernels, METH_NOARGS,
     "The kernels in force: [(key, Python function or None, with_keyset, is a Python kernel)]."},
    {"allow_boxing", operator_allow_boxing, METH_NOARGS, "Calls that are not direct may be boxed by the core."},
    {"by_kernels", operator_by_kernels, METH_VARARGS,
     "The dispatch key whose kernel keeps calls on a backend from being direct, or None."},
    {"forget", operator_forget, METH_NOARGS, "Forget every kernel: all calls go PyTorch's way from now on."},
    {"explain", operator_explain, METH_VARARGS, "The path that a call would take: (path, reason, slot, key)."},
    {"counters", operator_counters, METH_NOARGS, "Calls by path and by reason."},
    {"reset_counters", operator_reset_counters, METH_NOARGS, "Set every counter to zero."},
    {nullptr, nullptr, 0, nullptr}};

PyObject* operator_name(PyObject* object, void*) { return PyUnicode_FromString(operator_of(object).name().c_str()); }

PyObject* operator_boxes(PyObject* object, void*) { return PyBool_FromLong(operator_of(object).may_box() ? 1 : 0); }

PyGetSetDef operator_getset[] = {
    {"name", operator_name, nullptr, "\"ns::op\" or \"ns::op.overload\".", nullptr},
    {"boxes", operator_boxes, nullptr, "Whether calls that are not direct may be boxed by the core.", nullptr},
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

PyObject* confirm_python_kernels(PyObject*, PyObject* args) {
  PyObject *owner = nullptr, *plain = nullptr, *keyed = nullptr;
  const char *plain_key = nullptr, *keyed_key = nullptr;
  if (!PyArg_ParseTuple(args, "O!sOsO", operator_type, &owner, &plain_key, &plain, &keyed_key, &keyed)) {
    return nullptr;
  }
  HANDLE_TH_ERRORS
  const Operator& op = operator_of(owner);
  return PyBool_FromLong(torch_compat::confirm_python_kernels(registered_kernel(op, plain_key), plain,
                                                              registered_kernel(op, keyed_key), keyed)
                             ? 1
                             : 0);
  END_HANDLE_TH_ERRORS
}

bool add_operator_type(PyObject* module) {
  operator_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&operator_spec));
  return operator_type != nullptr && PyModule_AddType(module, operator_type) == 0;
}

}  // namespace dutyfree::call
