#include "call/autograd.h"

#include <array>
#include <utility>

#include "call/direct.h"
#include "call/node_call.h"
#include "seeded_fault.h"
#include "torch_compat/conversion.h"

namespace dutyfree::call {
namespace {

// Interned, owned for the life of the process; so are the tuples of names.
PyObject* setup_context_name = nullptr;
PyObject* context_keywords = nullptr;
PyObject* context_all_keywords = nullptr;

// A list belongs to the body that gets it, so whoever else needs it gets a copy.
PyObject* new_reference_or_copy(PyObject* value) {
  return PyList_CheckExact(value) && !seeded(Fault::ContextListShared)
             ? PyList_GetSlice(value, 0, PyList_GET_SIZE(value))
             : Py_NewRef(value);
}

// A default as setup_context sees it.
PyObject* default_for_context(const Slot& slot) {
  return new_reference_or_copy(seeded(Fault::ContextDefaultConverted) ? slot.default_value.get()
                                                                      : slot.schema_default.get());
}

PyRef keyword_inputs(const RunningCall& call) {
  const Signature& signature = call.op.signature();
  PyRef dict = PyRef::steal(PyDict_New());
  for (std::size_t slot = signature.positional_count(); dict && slot < signature.slots().size(); ++slot) {
    const PyRef value =
        PyRef::steal(call.arguments.passes_keyword(signature, slot) ? new_reference_or_copy(call.arguments.value(slot))
                                                                    : default_for_context(signature.slots()[slot]));
    if (!value || PyDict_SetItem(dict.get(), signature.slots()[slot].name.get(), value.get()) < 0) {
      return {};
    }
  }
  return dict;
}

PyRef prepared_node_call(const RunningCall& call) {
  PyRef object = make_node_call(call);
  if (object && call.op.signature().positional_count() < call.op.signature().slots().size()) {
    NodeCall& node = *as_node_call(object.get());
    node.keywords = keyword_inputs(call).release();
    if (node.keywords == nullptr) {
      return {};
    }
  }
  return object;
}

// The inputs of the Function: the arguments, and the NodeCall. With lists of tensors PyTorch's wrapper has two such
// extra inputs, one for each of its two layers.
PyRef function_inputs(const RunningCall& call, NodeCall& node) {
  const std::size_t passed = call.arguments.passed();
  const bool flattens = call.autograd->flattens_lists;
  PyRef inputs = PyRef::steal(PyTuple_New(static_cast<Py_ssize_t>(passed) + 1));
  for (std::size_t index = 0; inputs && index < passed; ++index) {
    PyObject* value = call.arguments.value(index);
    if (flattens && !node.inputs.add(value)) {
      return {};
    }
    value = flattens && node.inputs.is_list(index) ? Py_NewRef(value) : new_reference_or_copy(value);
    if (value == nullptr) {
      return {};
    }
    PyTuple_SET_ITEM(inputs.get(), static_cast<Py_ssize_t>(index), value);
  }
  if (!inputs) {
    return {};
  }
  auto* extra = reinterpret_cast<PyObject*>(&node);
  PyTuple_SET_ITEM(inputs.get(), static_cast<Py_ssize_t>(passed), Py_NewRef(extra));
  if (!flattens) [[likely]] {
    return inputs;
  }
  return node.inputs.add(extra) ? node.inputs.flatten(inputs.get(), extra) : PyRef();
}

// What setup_context sees as `inputs`: the arguments as they were before the body, and every default. `given` is what
// `forward` got after ctx.
PyRef context_inputs(const RunningCall& call, const NodeCall& node, PyObject* const* given) {
  const auto& slots = call.op.signature().slots();
  const std::size_t passed = call.arguments.passed();
  const std::size_t count = call.op.signature().positional_count();
  PyRef together;
  if (call.autograd->flattens_lists) {
    together = node.inputs.unflatten(given);
    if (!together) {
      return {};
    }
    given = &PyTuple_GET_ITEM(together.get(), 0);
  }
  PyRef inputs = PyRef::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t index = 0; inputs && index < count; ++index) {
    PyObject* value = index < passed ? Py_NewRef(given[index]) : default_for_context(slots[index]);
    if (value == nullptr) {
      return {};
    }
    PyTuple_SET_ITEM(inputs.get(), static_cast<Py_ssize_t>(index), value);
  }
  return inputs;
}

bool set_up_context(const RunningCall& call,
                    const NodeCall& node,
                    PyObject* ctx,
                    PyObject* const* given,
                    PyObject* result) {
  const PyRef function = PyRef::steal(PyObject_GetAttr(call.autograd->definition.get(), setup_context_name));
  if (!function) {
    return false;
  }
  if (const int there = PyObject_IsTrue(function.get()); there <= 0) {
    return there == 0;
  }
  const PyRef inputs = context_inputs(call, node, given);
  if (!inputs) {
    return false;
  }
  if (node.keywords == nullptr) {
    const std::array<PyObject*, 3> values = {ctx, inputs.get(), result};
    return static_cast<bool>(PyRef::steal(PyObject_Vectorcall(function.get(), values.data(), 0, context_keywords)));
  }
  const std::array<PyObject*, 4> values = {ctx, inputs.get(), node.keywords, result};
  return static_cast<bool>(PyRef::steal(PyObject_Vectorcall(function.get(), values.data(), 0, context_all_keywords)));
}

// Takes the result's lists of tensors apart and leaves what is needed to put them together again with the context.
PyObject* flat_result(NodeCall& node, PyObject* ctx, PyRef result) {
  node.result_is_tuple = PyTuple_Check(result.get());
  if (!node.result_is_tuple) {
    result = PyRef::steal(PyTuple_Pack(1, result.get()));
    if (!result) {
      return nullptr;
    }
  }
  for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(result.get()); ++index) {
    if (!node.outputs.add(PyTuple_GET_ITEM(result.get(), index))) {
      return nullptr;
    }
  }
  if (PyObject_HasAttr(ctx, metadata_name) != 0) {
    PyErr_SetString(PyExc_RuntimeError, "Please don't set ctx._pt_metadata; PyTorch uses it to store info");
    return nullptr;
  }
  if (PyObject_SetAttr(ctx, metadata_name, reinterpret_cast<PyObject*>(&node)) < 0) {
    return nullptr;
  }
  return node.outputs.flatten(result.get()).release();
}

// `forward` of an operator's Function: (ctx, *inputs, NodeCall).
PyObject* run_forward(PyObject*, PyObject* args) {
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  NodeCall* last = count < 2 ? nullptr : as_node_call(PyTuple_GET_ITEM(args, count - 1));
  if (last == nullptr || last->call == nullptr) {
    PyErr_SetString(PyExc_NotImplementedError,
                    "The Function of a dutyfree operator is there for the operator alone: call the operator.");
    return nullptr;
  }
  NodeCall& node = *last;
  // It serves one forward: whoever gets hold of it meanwhile (a hook on saved tensors) finds it used.
  const RunningCall& call = *std::exchange(node.call, nullptr);
  PyObject* ctx = PyTuple_GET_ITEM(args, 0);
  const torch_compat::BelowAutograd guard(call.thread, !seeded(Fault::ContextNotBelowAutograd));
  // The last kernel on the way up is the autograd kernel itself; record_gradient makes its conversions.
  PyRef result = run_body(call, call.decision.kernels_crossed - 1);
  if (!result || !set_up_context(call, node, ctx, &PyTuple_GET_ITEM(args, 1), result.get())) {
    return nullptr;
  }
  return call.autograd->flattens_lists ? flat_result(node, ctx, std::move(result)) : result.release();
}

// Whether the last kernel on the way up would return an equal object. PyTorch makes one value of a tuple of one.
bool stays_as_it_is(const Signature& signature, PyObject* result) {
  const std::size_t count = signature.results().size();
  return signature.results_are_plain() &&
         (count < 2 || (PyTuple_CheckExact(result) && static_cast<std::size_t>(PyTuple_GET_SIZE(result)) == count));
}

PyMethodDef forward_method = {"run_forward", run_forward, METH_VARARGS, "`forward` of an operator's Function."};

}  // namespace

PyObject* record_gradient(const RunningCall& call) {
  const PyRef object = prepared_node_call(call);
  if (!object) {
    return nullptr;
  }
  NodeCall& node = *as_node_call(object.get());
  const PyRef inputs = function_inputs(call, node);
  if (!inputs) {
    return nullptr;
  }
  PyRef result = PyRef::steal(PyObject_Call(call.autograd->apply.get(), inputs.get(), nullptr));
  node.call = nullptr;
  Py_CLEAR(node.keywords);
  if (result && call.autograd->flattens_lists) {
    if (PyTuple_GET_SIZE(result.get()) != node.outputs.flat_size()) [[unlikely]] {
      PyErr_SetString(PyExc_SystemError, "the Function of an operator returned other values than its forward");
      return nullptr;
    }
    result = node.outputs.unflatten(&PyTuple_GET_ITEM(result.get(), 0));
    if (result && !node.result_is_tuple) {
      result = PyRef::borrow(PyTuple_GET_ITEM(result.get(), 0));
    }
  }
  if (!result || stays_as_it_is(call.op.signature(), result.get())) [[likely]] {
    return result.release();
  }
  return torch_compat::result_through_kernel(call.op.schema(), result.get()).release();
}

bool add_forward(PyObject* module) {
  setup_context_name = PyUnicode_InternFromString("_setup_context_fn");
  context_keywords = Py_BuildValue("(sss)", "ctx", "inputs", "output");
  context_all_keywords = Py_BuildValue("(ssss)", "ctx", "inputs", "keyword_only_inputs", "output");
  const PyRef forward = PyRef::steal(PyCFunction_New(&forward_method, nullptr));
  return setup_context_name != nullptr && context_keywords != nullptr && context_all_keywords != nullptr && forward &&
         PyModule_AddObjectRef(module, "run_forward", forward.get()) == 0;
}

}  // namespace dutyfree::call
