#include "call/results.h"

#include <array>

#include "call/values.h"
#include "seeded_fault.h"
#include "torch_compat/conversion.h"
#include "torch_compat/tensor.h"

namespace dutyfree::call {
namespace {

// The storages of a call's results, each compared with those before it and with the inputs'.
class AliasCheck {
 public:
  // Only custom_op looks for aliases: where it does not, every tensor is admitted.
  AliasCheck(const Operator& op, const BoundArguments& arguments, bool checks)
      : op_(op), arguments_(arguments), checks_(checks) {}

  // False where the tensor may share storage, or where only PyTorch's own check can tell.
  bool admits(const c10::TensorImpl& tensor) {
    if (!checks_) {
      return true;
    }
    const c10::StorageImpl* storage = torch_compat::storage_identity(tensor);
    if (count_ == seen_.size() || !has_own_storage(op_, arguments_, tensor)) {
      return false;
    }
    for (std::size_t index = 0; index < count_; ++index) {
      if (seen_[index] == storage && !seeded(Fault::OutputAliasUnchecked)) {
        return false;
      }
    }
    seen_[count_++] = storage;
    return true;
  }

 private:
  const Operator& op_;
  const BoundArguments& arguments_;
  const bool checks_;
  std::array<const c10::StorageImpl*, 16> seen_;
  std::size_t count_ = 0;
};

// Making the new list may run a finaliser that changes the old one: null then.
PyRef copy_as_list(PyObject* sequence) {
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence);
  PyRef list = PyRef::steal(PyList_New(size));
  if (!list || PySequence_Fast_GET_SIZE(sequence) != size) {
    return {};
  }
  PyObject** items = PySequence_Fast_ITEMS(sequence);
  for (Py_ssize_t index = 0; index < size; ++index) {
    Py_INCREF(items[index]);
    PyList_SET_ITEM(list.get(), index, items[index]);
  }
  return list;
}

// The list that a caller gets for `value`: that very one where nobody but us holds it, a copy where the body kept it (a
// caller must not see what the body does to its own list later). Null where only PyTorch can tell.
PyRef settle_tensor_list(PyObject* value, bool sole_owner, AliasCheck& aliases) {
  PyRef list;
  if (seeded(Fault::TupleKept) && PyTuple_CheckExact(value)) {
    return PyRef::borrow(value);
  }
  if (PyList_CheckExact(value) && ((sole_owner && Py_REFCNT(value) == 1) || seeded(Fault::ResultListShared)))
      [[likely]] {
    list = PyRef::borrow(value);
  } else if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
    list = copy_as_list(value);
  }
  if (!list) {
    return {};
  }
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(list.get()); ++index) {
    PyObject* item = PyList_GET_ITEM(list.get(), index);
    if (!torch_compat::is_plain_tensor(item) || !aliases.admits(*torch_compat::tensor_impl(item))) {
      return {};
    }
  }
  return list;
}

// What a caller gets for one value of a result, or null, with or without a Python error, where only PyTorch can tell.
// `sole_owner` says that nobody but us holds what contains the value.
PyRef settle_value(const ValueType& type, PyObject* value, bool sole_owner, AliasCheck& aliases) {
  if (type.optional) {
    return {};
  }
  if (type.list) {
    return type.kind == ValueKind::Tensor ? settle_tensor_list(value, sole_owner, aliases) : PyRef();
  }
  bool settled = false;
  switch (type.kind) {
    case ValueKind::Tensor:
      settled = torch_compat::is_plain_tensor(value) && aliases.admits(*torch_compat::tensor_impl(value));
      break;
    case ValueKind::Int:
      settled = is_exact_int64(value);
      break;
    case ValueKind::Scalar:
      settled = is_exact_number(value);
      break;
    case ValueKind::Float:
      if (is_exact_int64(value)) {
        return PyRef::steal(int_as_float(value));
      }
      settled = PyFloat_CheckExact(value);
      break;
    case ValueKind::Bool:
      settled = PyBool_Check(value);
      break;
    default:
      break;
  }
  return settled ? PyRef::borrow(value) : PyRef();
}

// The same for the several values of a result, in a tuple: the body's own where nothing in it had to change.
PyRef settle_values(const std::vector<ValueType>& types, PyObject* result, AliasCheck& aliases) {
  const bool sole_owner = Py_REFCNT(result) == 1;
  // A list that others hold may change under our hands while the values are converted.
  if ((!PyTuple_CheckExact(result) && !(PyList_CheckExact(result) && sole_owner)) ||
      static_cast<std::size_t>(PySequence_Fast_GET_SIZE(result)) != types.size()) {
    return {};
  }
  const auto count = static_cast<Py_ssize_t>(types.size());
  PyObject** items = PySequence_Fast_ITEMS(result);
  PyRef changed;
  for (Py_ssize_t index = 0; index < count; ++index) {
    PyRef value = settle_value(types[static_cast<std::size_t>(index)], items[index], sole_owner, aliases);
    if (!value) {
      return {};
    }
    if (!changed && PyTuple_CheckExact(result) && value.get() == items[index]) [[likely]] {
      continue;
    }
    if (!changed) {
      changed = PyRef::steal(PyTuple_New(count));
      if (!changed) {
        return {};
      }
      for (Py_ssize_t before = 0; before < index; ++before) {
        Py_INCREF(items[before]);
        PyTuple_SET_ITEM(changed.get(), before, items[before]);
      }
    }
    PyTuple_SET_ITEM(changed.get(), index, value.release());
  }
  return changed ? std::move(changed) : PyRef::borrow(result);
}

// The same for operators that return their own arguments.
bool is_returned_argument(const Operator& op, const BoundArguments& arguments, PyObject* result) {
  if (seeded(Fault::ReturnedArgumentUnchecked)) {
    return true;
  }
  const auto& slots = op.returned_slots();
  if (slots.size() == 1) {
    return result == arguments.value(slots[0]);
  }
  if (!PyTuple_CheckExact(result) || static_cast<std::size_t>(PyTuple_GET_SIZE(result)) != slots.size()) {
    return false;
  }
  for (std::size_t index = 0; index < slots.size(); ++index) {
    if (PyTuple_GET_ITEM(result, static_cast<Py_ssize_t>(index)) != arguments.value(slots[index])) {
      return false;
    }
  }
  return true;
}

// What the caller gets, or null, with or without a Python error, where only PyTorch can tell.
PyRef settle(const Operator& op, const BoundArguments& arguments, PyObject* result, bool checks_aliases) {
  if (op.returns_mutated() && checks_aliases) {
    return is_returned_argument(op, arguments, result) ? PyRef::borrow(result) : PyRef();
  }
  const auto& types = op.signature().results();
  if (types.empty()) {
    return result == Py_None ? PyRef::borrow(result) : PyRef();
  }
  AliasCheck aliases(op, arguments, checks_aliases);
  return types.size() == 1 ? settle_value(types[0], result, true, aliases) : settle_values(types, result, aliases);
}

// custom_op's own backend wrapper looks at the result, then every kernel on the way up converts it.
PyObject* settle_as_pytorch(const Operator& op,
                            const BoundArguments& arguments,
                            PyRef result,
                            PyObject* judge,
                            int kernels_crossed) {
  if (judge != nullptr) {
    const PyRef args = arguments.as_tuple();
    const PyRef kwargs = arguments.as_dict(op.signature());
    if (!args || !kwargs) {
      return nullptr;
    }
    result = PyRef::steal(PyObject_CallFunctionObjArgs(judge, result.get(), args.get(), kwargs.get(), nullptr));
  }
  for (int kernel = 0; result && kernel < kernels_crossed; ++kernel) {
    result = torch_compat::result_through_kernel(op.schema(), result.get());
  }
  return result.release();
}

}  // namespace

PyObject* settle_any_result(const Operator& op,
                            const BoundArguments& arguments,
                            PyRef result,
                            PyObject* judge,
                            int kernels_crossed) {
  PyRef settled;
  if (op.signature().returns_tensor_list() && !op.returns_mutated()) {
    AliasCheck aliases(op, arguments, judge != nullptr);
    settled = settle_tensor_list(result.get(), true, aliases);
  } else {
    settled = settle(op, arguments, result.get(), judge != nullptr);
  }
  if (settled) [[likely]] {
    return settled.release();
  }
  PyErr_Clear();  // memory ran out: PyTorch's way will say so again
  return settle_as_pytorch(op, arguments, std::move(result), judge, kernels_crossed);
}

}  // namespace dutyfree::call
