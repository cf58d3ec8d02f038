#include "call/autograd.h"

#include <torch/csrc/autograd/python_function.h>

#include <array>

#include "call/direct.h"
#include "call/tensor_lists.h"
#include "torch_compat/conversion.h"

namespace dutyfree::call {
namespace {

// The last input of a node's Function: it leads `forward` to the call. PyTorch's own wrapper has a Metadata object
// there, which counts as an input in needs_input_grad and in PyTorch's errors, so this is one, too.
struct NodeCall {
  PyObject_HEAD
  const RunningCall* call;  // while the node is made
  PyObject* keywords;       // owned: the keyword-only inputs for setup_context; null where the schema has none
  // For schemas with lists of tensors, whose node keeps this object for its backward.
  TensorLists inputs;
  TensorLists outputs;
  bool result_is_tuple;
};

PyTypeObject* node_call_type = nullptr;

// Interned strings and tuples of them; owned for the life of the process.
struct Names {
  PyObject* setup_context_fn = PyUnicode_InternFromString("_setup_context_fn");
  PyObject* backward_fn = PyUnicode_InternFromString("_backward_fn");
  PyObject* definition = PyUnicode_InternFromString("_definition");
  PyObject* needs_input_grad = PyUnicode_InternFromString("needs_input_grad");
  PyObject* metadata = PyUnicode_InternFromString("_pt_metadata");
  PyObject* context_keywords = Py_BuildValue("(sss)", "ctx", "inputs", "output");
  PyObject* context_all_keywords = Py_BuildValue("(ssss)", "ctx", "inputs", "keyword_only_inputs", "output");
};
Names* names = nullptr;

NodeCall& node_call(PyObject* object) { return *reinterpret_cast<NodeCall*>(object); }

void node_call_dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  Py_XDECREF(node_call(object).keywords);
  node_call(object).inputs.~TensorLists();
  node_call(object).outputs.~TensorLists();
  type->tp_free(object);
  Py_DECREF(type);
}

// --- forward ---------------------------------------------------------------------------------------------------------

// A list belongs to the body that gets it, so whoever else needs it gets a copy.
PyObject* new_reference_or_copy(PyObject* value) {
  return PyList_CheckExact(value) ? PyList_GetSlice(value, 0, PyList_GET_SIZE(value)) : Py_NewRef(value);
}

PyRef keyword_inputs(const RunningCall& call) {
  const Signature& signature = call.op.signature();
  PyRef dict = PyRef::steal(PyDict_New());
  for (std::size_t slot = signature.positional_count(); dict && slot < signature.slots().size(); ++slot) {
    const PyRef value = PyRef::steal(
        new_reference_or_copy(call.arguments.passes_keyword(signature, slot)
                                  ? call.arguments.value(slot)
                                  : signature.slots()[slot].schema_default.get()));
    if (!value || PyDict_SetItem(dict.get(), signature.slots()[slot].name.get(), value.get()) < 0) {
      return {};
    }
  }
  return dict;
}

PyRef make_node_call(const RunningCall& call) {
  PyRef object = PyRef::steal(node_call_type->tp_alloc(node_call_type, 0));
  if (!object) {
    return {};
  }
  NodeCall& node = node_call(object.get());
  new (&node.inputs) TensorLists();
  new (&node.outputs) TensorLists();
  node.call = &call;
  if (call.op.signature().positional_count() < call.op.signature().slots().size()) {
    node.keywords = keyword_inputs(call).release();
    if (node.keywords == nullptr) {
      return {};
    }
  }
  return object;
}

// The inputs of the Function: the arguments, and the NodeCall. With lists of tensors PyTorch's wrapper has two such
// extra inputs, one for each of its two layers.
PyRef function_inputs(const RunningCall& call, PyObject* node) {
  const auto passed = static_cast<Py_ssize_t>(call.arguments.passed());
  if (!call.autograd->flattens_lists) [[likely]] {
    PyRef inputs = PyRef::steal(PyTuple_New(passed + 1));
    for (Py_ssize_t index = 0; inputs && index < passed; ++index) {
      PyObject* value = new_reference_or_copy(call.arguments.value(static_cast<std::size_t>(index)));
      if (value == nullptr) {
        return {};
      }
      PyTuple_SET_ITEM(inputs.get(), index, value);
    }
    if (inputs) {
      PyTuple_SET_ITEM(inputs.get(), passed, Py_NewRef(node));
    }
    return inputs;
  }
  TensorLists& lists = node_call(node).inputs;
  for (Py_ssize_t index = 0; index < passed; ++index) {
    PyObject* value = call.arguments.value(static_cast<std::size_t>(index));
    is_tensor_list(value) ? lists.add_list(PyList_GET_SIZE(value)) : lists.add_value();
  }
  lists.add_value();
  PyRef inputs = PyRef::steal(PyTuple_New(lists.flat_size() + 1));
  Py_ssize_t next = 0;
  for (Py_ssize_t index = 0; inputs && index < passed; ++index) {
    PyObject* value = call.arguments.value(static_cast<std::size_t>(index));
    const Py_ssize_t size = lists.size_of(static_cast<std::size_t>(index));
    if (size == TensorLists::kValue) {
      value = new_reference_or_copy(value);
      if (value == nullptr) {
        return {};
      }
      PyTuple_SET_ITEM(inputs.get(), next++, value);
    }
    for (Py_ssize_t item = 0; item < size; ++item) {
      PyTuple_SET_ITEM(inputs.get(), next++, Py_NewRef(PyList_GET_ITEM(value, item)));
    }
  }
  if (inputs) {
    PyTuple_SET_ITEM(inputs.get(), next++, Py_NewRef(Py_None));
    PyTuple_SET_ITEM(inputs.get(), next, Py_NewRef(node));
  }
  return inputs;
}

// What setup_context sees as `inputs`: the arguments as they were before the body, and every default. `given` is what
// `forward` got after ctx.
PyRef context_inputs(const RunningCall& call, const NodeCall& node, PyObject* const* given) {
  const auto& slots = call.op.signature().slots();
  const std::size_t passed = call.arguments.passed();
  const std::size_t count = call.op.signature().positional_count();
  PyRef together;
  if (call.autograd->flattens_lists) {
    together = node.inputs.put_together(given);
    if (!together) {
      return {};
    }
    given = &PyTuple_GET_ITEM(together.get(), 0);
  }
  PyRef inputs = PyRef::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t index = 0; inputs && index < count; ++index) {
    PyObject* value = index < passed ? Py_NewRef(given[index]) : new_reference_or_copy(slots[index].schema_default.get());
    if (value == nullptr) {
      return {};
    }
    PyTuple_SET_ITEM(inputs.get(), static_cast<Py_ssize_t>(index), value);
  }
  return inputs;
}

bool set_up_context(const RunningCall& call, const NodeCall& node, PyObject* ctx, PyObject* const* given, PyObject* result) {
  const PyRef function = PyRef::steal(PyObject_GetAttr(call.autograd->definition.get(), names->setup_context_fn));
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
    return static_cast<bool>(
        PyRef::steal(PyObject_Vectorcall(function.get(), values.data(), 0, names->context_keywords)));
  }
  const std::array<PyObject*, 4> values = {ctx, inputs.get(), node.keywords, result};
  return static_cast<bool>(
      PyRef::steal(PyObject_Vectorcall(function.get(), values.data(), 0, names->context_all_keywords)));
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
    PyObject* value = PyTuple_GET_ITEM(result.get(), index);
    is_tensor_list(value) ? node.outputs.add_list(PyList_GET_SIZE(value)) : node.outputs.add_value();
  }
  if (PyObject_HasAttr(ctx, names->metadata) != 0) {
    PyErr_SetString(PyExc_RuntimeError, "Please don't set ctx._pt_metadata; PyTorch uses it to store info");
    return nullptr;
  }
  if (PyObject_SetAttr(ctx, names->metadata, reinterpret_cast<PyObject*>(&node)) < 0) {
    return nullptr;
  }
  return node.outputs.take_apart(result.get(), 0).release();
}

// `forward` of an operator's Function: (ctx, *inputs, NodeCall).
PyObject* run_forward(PyObject*, PyObject* args) {
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  PyObject* last = count < 2 ? nullptr : PyTuple_GET_ITEM(args, count - 1);
  if (last == nullptr || Py_TYPE(last) != node_call_type || node_call(last).call == nullptr) {
    PyErr_SetString(PyExc_NotImplementedError,
                    "The Function of a dutyfree operator is there for the operator alone: call the operator.");
    return nullptr;
  }
  NodeCall& node = node_call(last);
  const RunningCall& call = *node.call;
  PyObject* ctx = PyTuple_GET_ITEM(args, 0);
  const torch_compat::BelowAutograd guard(call.thread, true);
  PyRef result = run_body(call, call.decision.kernels_crossed - 1);
  if (!result || !set_up_context(call, node, ctx, &PyTuple_GET_ITEM(args, 1), result.get())) {
    return nullptr;
  }
  return call.autograd->flattens_lists ? flat_result(node, ctx, std::move(result)) : result.release();
}

// --- backward --------------------------------------------------------------------------------------------------------

// Shows the registered backward function its own needs_input_grad on a node for its lifetime.
class NeedsInputGrad {
 public:
  NeedsInputGrad(PyObject* node, PyRef before, PyObject* shown) : node_(node), before_(std::move(before)) {
    failed_ = PyObject_SetAttr(node_, names->needs_input_grad, shown) < 0;
  }
  ~NeedsInputGrad() {
    PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyObject_SetAttr(node_, names->needs_input_grad, before_.get()) < 0) {
      PyErr_WriteUnraisable(node_);
    }
    PyErr_Restore(type, value, traceback);
  }
  NeedsInputGrad(const NeedsInputGrad&) = delete;
  NeedsInputGrad& operator=(const NeedsInputGrad&) = delete;

  bool failed() const { return failed_; }

 private:
  PyObject* node_;
  PyRef before_;
  bool failed_;
};

// PyTorch's own `backward` of the Function: its error where no formula is registered, and whatever is not foreseen here.
[[gnu::cold]] PyObject* as_pytorch(PyObject* node, PyObject* const* grads, Py_ssize_t count) {
  const PyRef forward_class = PyRef::steal(PyObject_GetAttrString(node, "_forward_cls"));
  const PyRef backward = PyRef::steal(forward_class ? PyObject_GetAttrString(forward_class.get(), "backward") : nullptr);
  const PyRef arguments = PyRef::steal(backward ? PyTuple_New(count + 1) : nullptr);
  if (!arguments) {
    return nullptr;
  }
  PyTuple_SET_ITEM(arguments.get(), 0, Py_NewRef(node));
  for (Py_ssize_t index = 0; index < count; ++index) {
    PyTuple_SET_ITEM(arguments.get(), index + 1, Py_NewRef(grads[index]));
  }
  return PyObject_CallObject(backward.get(), arguments.get());
}

// The backward function that is registered now. Null without a Python error where there is none.
PyRef backward_function(PyObject* node) {
  const PyRef definition =
      PyRef::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(node)), names->definition));
  PyRef function = PyRef::steal(definition ? PyObject_GetAttr(definition.get(), names->backward_fn) : nullptr);
  return function && PyObject_IsTrue(function.get()) == 1 ? std::move(function) : PyRef();
}

PyRef call_with_node(PyObject* function, PyObject* node, PyObject* const* grads, Py_ssize_t count) {
  constexpr std::size_t kMost = 16;
  std::array<PyObject*, kMost + 2> few;
  std::vector<PyObject*> many;
  PyObject** values = few.data();
  if (static_cast<std::size_t>(count) > kMost) {
    many.resize(static_cast<std::size_t>(count) + 2);
    values = many.data();
  }
  values[1] = node;
  std::copy_n(grads, count, values + 2);
  return PyRef::steal(PyObject_Vectorcall(
      function, values + 1, (static_cast<std::size_t>(count) + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

// The gradients that a backward function returned, and one None for the extra input of the Function.
PyRef with_none(PyRef gradients) {
  if (!PyTuple_Check(gradients.get())) {
    return PyRef::steal(PyTuple_Pack(2, gradients.get(), Py_None));
  }
  if (!PyTuple_CheckExact(gradients.get())) {
    gradients = PyRef::steal(PySequence_Tuple(gradients.get()));
    if (!gradients) {
      return {};
    }
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(gradients.get());
  PyRef longer = PyRef::steal(PyTuple_New(count + 1));
  for (Py_ssize_t index = 0; longer && index <= count; ++index) {
    PyTuple_SET_ITEM(longer.get(), index,
                     Py_NewRef(index < count ? PyTuple_GET_ITEM(gradients.get(), index) : Py_None));
  }
  return longer;
}

// `apply` of an operator's nodes, which the autograd engine calls with one gradient an output.
PyObject* run_backward(PyObject* node, PyObject* const* grads, Py_ssize_t count) {
  PyRef needed = PyRef::steal(PyObject_GetAttr(node, names->needs_input_grad));
  const PyRef function = needed ? backward_function(node) : PyRef();
  if (!function || !PyTuple_CheckExact(needed.get())) {
    return PyErr_Occurred() != nullptr ? nullptr : as_pytorch(node, grads, count);
  }
  PyRef gradients;
  {
    const PyRef shown = PyRef::steal(PyTuple_GetSlice(needed.get(), 0, PyTuple_GET_SIZE(needed.get()) - 1));
    if (!shown) {
      return nullptr;
    }
    const NeedsInputGrad guard(node, std::move(needed), shown.get());
    gradients = guard.failed() ? PyRef() : call_with_node(function.get(), node, grads, count);
  }
  return gradients ? with_none(std::move(gradients)).release() : nullptr;
}

// The gradients do not have the inputs' structure: PyTorch says so in its own words.
[[gnu::cold]] PyObject* refuse_gradients(PyObject* node, PyObject* gradients) {
  const PyRef module = PyRef::steal(PyImport_ImportModule("dutyfree._gradients"));
  return module ? PyObject_CallMethod(module.get(), "flat_gradients", "OO", node, gradients) : nullptr;
}

// The same where the schema has lists of tensors.
PyObject* run_backward_with_lists(PyObject* node, PyObject* const* grads, Py_ssize_t count) {
  const PyRef metadata = PyRef::steal(PyObject_GetAttr(node, names->metadata));
  PyErr_Clear();
  PyRef needed = PyRef::steal(PyObject_GetAttr(node, names->needs_input_grad));
  const PyRef function = needed ? backward_function(node) : PyRef();
  if (!function) {
    return PyErr_Occurred() != nullptr ? nullptr : as_pytorch(node, grads, count);
  }
  if (!metadata || Py_TYPE(metadata.get()) != node_call_type || !PyTuple_CheckExact(needed.get())) {
    return as_pytorch(node, grads, count);
  }
  const NodeCall& made = node_call(metadata.get());
  if (PyTuple_GET_SIZE(needed.get()) != made.inputs.flat_size() + 1 || count != made.outputs.flat_size()) {
    return as_pytorch(node, grads, count);
  }
  PyRef gradients;
  {
    const PyRef all = made.inputs.put_together(&PyTuple_GET_ITEM(needed.get(), 0));
    const PyRef shown = PyRef::steal(all ? PyTuple_GetSlice(all.get(), 0, PyTuple_GET_SIZE(all.get()) - 1) : nullptr);
    const PyRef grouped = made.outputs.put_together(grads);
    if (!shown || !grouped) {
      return nullptr;
    }
    const NeedsInputGrad guard(node, std::move(needed), shown.get());
    gradients = guard.failed() ? PyRef()
                               : call_with_node(function.get(), node, &PyTuple_GET_ITEM(grouped.get(), 0),
                                                PyTuple_GET_SIZE(grouped.get()));
  }
  if (gradients) {
    gradients = with_none(std::move(gradients));
  }
  if (!gradients) {
    return nullptr;
  }
  PyRef flat = made.inputs.take_apart(gradients.get(), 1);
  if (!flat && PyErr_Occurred() == nullptr) {
    return refuse_gradients(node, gradients.get());
  }
  return flat.release();
}

// --- the module's names ----------------------------------------------------------------------------------------------

PyObject* input_spec(PyObject* object, void*) { return node_call(object).inputs.as_tree_spec().release(); }
PyObject* output_spec(PyObject* object, void*) { return node_call(object).outputs.as_tree_spec().release(); }
PyObject* result_is_tuple(PyObject* object, void*) { return PyBool_FromLong(node_call(object).result_is_tuple ? 1 : 0); }

// By the names that PyTorch's own Python code uses, since a compiled backward runs that.
PyGetSetDef node_call_getset[] = {
    {"input_spec", input_spec, nullptr, "Where the inputs have lists of tensors, as a TreeSpec.", nullptr},
    {"output_spec", output_spec, nullptr, "The same of the outputs.", nullptr},
    {"result_is_tuple", result_is_tuple, nullptr, "Whether the body returned a tuple.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot node_call_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(node_call_dealloc)},
                                 {Py_tp_getset, node_call_getset},
                                 {0, nullptr}};

PyType_Spec node_call_spec = {"dutyfree._core.NodeCall", sizeof(NodeCall), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, node_call_slots};

PyMethodDef forward_method = {"run_forward", run_forward, METH_VARARGS, "`forward` of an operator's Function."};
PyMethodDef backward_method = {"apply", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_backward)),
                               METH_FASTCALL, "`apply` of an operator's nodes."};
PyMethodDef backward_with_lists_method = {
    "apply", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_backward_with_lists)), METH_FASTCALL,
    "`apply` of an operator's nodes where the schema has lists of tensors."};

}  // namespace

PyObject* record_gradient(const RunningCall& call) {
  const PyRef node = make_node_call(call);
  const PyRef inputs = node ? function_inputs(call, node.get()) : PyRef();
  if (!inputs) {
    return nullptr;
  }
  PyRef result = PyRef::steal(PyObject_Call(call.autograd->apply.get(), inputs.get(), nullptr));
  node_call(node.get()).call = nullptr;
  Py_CLEAR(node_call(node.get()).keywords);
  if (result && call.autograd->flattens_lists) {
    result = node_call(node.get()).outputs.put_together(&PyTuple_GET_ITEM(result.get(), 0));
    if (result && !node_call(node.get()).result_is_tuple) {
      result = PyRef::borrow(PyTuple_GET_ITEM(result.get(), 0));
    }
  }
  if (!result || call.op.signature().results_are_plain()) [[likely]] {
    return result.release();
  }
  return torch_compat::result_through_kernel(call.op.schema(), result.get()).release();
}

bool add_autograd(PyObject* module) {
  names = new Names();
  node_call_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&node_call_spec));
  const PyRef forward = PyRef::steal(PyCFunction_New(&forward_method, nullptr));
  const PyRef backward = PyRef::steal(PyDescr_NewMethod(&THPFunctionType, &backward_method));
  const PyRef backward_with_lists = PyRef::steal(PyDescr_NewMethod(&THPFunctionType, &backward_with_lists_method));
  return node_call_type != nullptr && forward && backward && backward_with_lists &&
         PyModule_AddType(module, node_call_type) == 0 &&
         PyModule_AddObjectRef(module, "run_forward", forward.get()) == 0 &&
         PyModule_AddObjectRef(module, "run_backward", backward.get()) == 0 &&
         PyModule_AddObjectRef(module, "run_backward_with_lists", backward_with_lists.get()) == 0;
}

}  // namespace dutyfree::call
