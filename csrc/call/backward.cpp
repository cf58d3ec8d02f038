#include "call/backward.h"

#include <torch/csrc/autograd/python_function.h>

#include <algorithm>
#include <array>

#include "call/apply_watch.h"
#include "call/node_call.h"
#include "seeded_fault.h"

namespace dutyfree::call {
namespace {

// Interned, owned for the life of the process.
PyObject* definition_name = nullptr;
PyObject* backward_name = nullptr;
PyObject* needs_name = nullptr;

// Shows the registered backward function its own needs_input_grad on a node for its lifetime.
class NeedsInputGrad {
 public:
  NeedsInputGrad(PyObject* node, PyRef before, PyObject* shown) : node_(node), before_(std::move(before)) {
    failed_ = PyObject_SetAttr(node_, needs_name, shown) < 0;
  }
  ~NeedsInputGrad() {
    PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyObject_SetAttr(node_, needs_name, before_.get()) < 0) {
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

// `function` with a node and its gradients.
PyRef call_with_node(PyObject* function, PyObject* node, PyObject* const* grads, Py_ssize_t count) {
  constexpr Py_ssize_t kFew = 16;
  if (count <= kFew) [[likely]] {
    std::array<PyObject*, kFew + 2> values;
    values[1] = node;
    std::copy_n(grads, count, values.data() + 2);
    return PyRef::steal(PyObject_Vectorcall(function, values.data() + 1,
                                            (static_cast<std::size_t>(count) + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                            nullptr));
  }
  const PyRef values = PyRef::steal(PyTuple_New(count + 1));
  if (!values) {
    return {};
  }
  PyTuple_SET_ITEM(values.get(), 0, Py_NewRef(node));
  for (Py_ssize_t index = 0; index < count; ++index) {
    PyTuple_SET_ITEM(values.get(), index + 1, Py_NewRef(grads[index]));
  }
  return PyRef::steal(PyObject_Call(function, values.get(), nullptr));
}

// By the `apply` that someone put in the place of torch's.
[[gnu::cold]] PyObject* by_node_apply(PyObject* node, PyObject* const* grads, Py_ssize_t count) {
  const PyRef apply = node_apply_now();
  return apply ? call_with_node(apply.get(), node, grads, count).release() : nullptr;
}

// PyTorch's own `backward` of the Function: its error where no formula is registered, and whatever is not foreseen
// here.
[[gnu::cold]] PyObject* as_pytorch(PyObject* node, PyObject* const* grads, Py_ssize_t count) {
  const PyRef forward_class = PyRef::steal(PyObject_GetAttrString(node, "_forward_cls"));
  const PyRef backward =
      PyRef::steal(forward_class ? PyObject_GetAttrString(forward_class.get(), "backward") : nullptr);
  return backward ? call_with_node(backward.get(), node, grads, count).release() : nullptr;
}

// The backward function that is registered now. Null without a Python error where there is none.
PyRef backward_function(PyObject* node) {
  const PyRef definition = PyRef::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(node)), definition_name));
  PyRef function = PyRef::steal(definition ? PyObject_GetAttr(definition.get(), backward_name) : nullptr);
  return function && PyObject_IsTrue(function.get()) == 1 ? std::move(function) : PyRef();
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
  if (!node_apply_stands()) [[unlikely]] {
    return by_node_apply(node, grads, count);
  }
  PyRef needed = PyRef::steal(PyObject_GetAttr(node, needs_name));
  const PyRef function = needed ? backward_function(node) : PyRef();
  if (!function || !PyTuple_CheckExact(needed.get())) {
    return PyErr_Occurred() != nullptr ? nullptr : as_pytorch(node, grads, count);
  }
  PyRef gradients;
  {
    const Py_ssize_t extra = seeded(Fault::NeedsInputGradWhole) ? 0 : 1;
    const PyRef shown = PyRef::steal(PyTuple_GetSlice(needed.get(), 0, PyTuple_GET_SIZE(needed.get()) - extra));
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
  if (!node_apply_stands()) [[unlikely]] {
    return by_node_apply(node, grads, count);
  }
  const PyRef metadata = PyRef::steal(PyObject_GetAttr(node, metadata_name));
  PyErr_Clear();
  PyRef needed = PyRef::steal(PyObject_GetAttr(node, needs_name));
  const PyRef function = needed ? backward_function(node) : PyRef();
  if (!function) {
    return PyErr_Occurred() != nullptr ? nullptr : as_pytorch(node, grads, count);
  }
  const NodeCall* known = metadata ? as_node_call(metadata.get()) : nullptr;
  if (known == nullptr || !PyTuple_CheckExact(needed.get())) {
    return as_pytorch(node, grads, count);
  }
  const NodeCall& made = *known;
  if (PyTuple_GET_SIZE(needed.get()) != made.inputs.flat_size() + 1 || count != made.outputs.flat_size()) {
    return as_pytorch(node, grads, count);
  }
  PyRef gradients;
  {
    const PyRef all = made.inputs.unflatten(&PyTuple_GET_ITEM(needed.get(), 0));
    const PyRef shown = PyRef::steal(all ? PyTuple_GetSlice(all.get(), 0, PyTuple_GET_SIZE(all.get()) - 1) : nullptr);
    const PyRef grouped = made.outputs.unflatten(grads);
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
  PyRef flat = made.inputs.flatten_gradients(gradients.get(), Py_None);
  if (!flat && PyErr_Occurred() == nullptr) {
    return refuse_gradients(node, gradients.get());
  }
  return flat.release();
}

PyMethodDef backward_method = {"apply", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_backward)),
                               METH_FASTCALL, "`apply` of an operator's nodes."};
PyMethodDef backward_with_lists_method = {
    "apply", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_backward_with_lists)), METH_FASTCALL,
    "`apply` of an operator's nodes where the schema has lists of tensors."};

}  // namespace

bool add_backward(PyObject* module) {
  definition_name = PyUnicode_InternFromString("_definition");
  backward_name = PyUnicode_InternFromString("_backward_fn");
  needs_name = PyUnicode_InternFromString("needs_input_grad");
  const PyRef plain = PyRef::steal(PyDescr_NewMethod(&THPFunctionType, &backward_method));
  const PyRef with_lists = PyRef::steal(PyDescr_NewMethod(&THPFunctionType, &backward_with_lists_method));
  return definition_name != nullptr && backward_name != nullptr && needs_name != nullptr && plain && with_lists &&
         PyModule_AddObjectRef(module, "run_backward", plain.get()) == 0 &&
         PyModule_AddObjectRef(module, "run_backward_with_lists", with_lists.get()) == 0;
}

}  // namespace dutyfree::call
