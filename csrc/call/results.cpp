#include "call/results.h"

#include <array>

#include "call/values.h"
#include "torch_compat/conversion.h"
#include "torch_compat/tensor.h"

namespace dutyfree::call {
namespace {

// The storages of a call's results, each compared with those before it and with the inputs'.
class AliasCheck {
 public:
  AliasCheck(const Operator& op, const BoundArguments& arguments) : op_(op), arguments_(arguments) {}

  // False where the tensor may share storage, or where only PyTorch's own check can tell.
  bool admits(const c10::TensorImpl& tensor) {
    const c10::StorageImpl* storage = torch_compat::storage_identity(tensor);
    if (storage == nullptr || count_ == seen_.size()) {
      return false;
    }
    for (std::size_t index = 0; index < count_; ++index) {
      if (seen_[index] == storage) {
        return false;
      }
    }
    seen_[count_++] = storage;
    return !arguments_.any_tensor(op_.signature(), op_.signature().tensor_slots(),
                                  [storage](const c10::TensorImpl& input) {
                                    return torch_compat::storage_identity(input) == storage;
                                  });
  }

 private:
  const Operator& op_;
  const BoundArguments& arguments_;
  std::array<const c10::StorageImpl*, 16> seen_;
  std::size_t count_ = 0;
};

bool is_plain_tensor(PyObject* value) {
  return torch_compat::is_exact_tensor(value) &&
         torch_compat::has_plain_keys(torch_compat::tensor_impl(value)->key_set());
}

// Whether `value` is already exactly what PyTorch would make of it. `sole_owner` says that nobody else holds what
// contains it. When unsure: no.
bool is_settled(const ValueType& type, PyObject* value, bool sole_owner, AliasCheck& aliases) {
  if (type.optional) {
    return false;
  }
  if (type.list) {
    // The caller gets a list of its own, so one that the body kept must be copied.
    if (type.kind != ValueKind::Tensor || !PyList_CheckExact(value) || !sole_owner || Py_REFCNT(value) != 1) {
      return false;
    }
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(value); ++index) {
      PyObject* item = PyList_GET_ITEM(value, index);
      if (!is_plain_tensor(item) || !aliases.admits(*torch_compat::tensor_impl(item))) {
        return false;
      }
    }
    return true;
  }
  switch (type.kind) {
    case ValueKind::Tensor:
      return is_plain_tensor(value) && aliases.admits(*torch_compat::tensor_impl(value));
    case ValueKind::Int:
      return is_exact_int64(value);
    case ValueKind::Scalar:
      return is_exact_number(value);
    case ValueKind::Float:
      return PyFloat_CheckExact(value);
    case ValueKind::Bool:
      return PyBool_Check(value);
    default:
      return false;
  }
}

// The same for operators that return their own arguments.
bool is_returned_argument(const Operator& op, const BoundArguments& arguments, PyObject* result) {
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

bool is_settled(const Operator& op, const BoundArguments& arguments, PyObject* result) {
  if (op.returns_mutated()) {
    return is_returned_argument(op, arguments, result);
  }
  const auto& types = op.signature().results();
  if (types.empty()) {
    return result == Py_None;
  }
  AliasCheck aliases(op, arguments);
  if (types.size() == 1) {
    return is_settled(types[0], result, true, aliases);
  }
  if (!PyTuple_CheckExact(result) || static_cast<std::size_t>(PyTuple_GET_SIZE(result)) != types.size()) {
    return false;
  }
  const bool sole_owner = Py_REFCNT(result) == 1;
  for (std::size_t index = 0; index < types.size(); ++index) {
    if (!is_settled(types[index], PyTuple_GET_ITEM(result, static_cast<Py_ssize_t>(index)), sole_owner, aliases)) {
      return false;
    }
  }
  return true;
}

// PyTorch's own backend wrapper looks at the result, then every kernel on the way up converts it.
PyObject* settle_as_pytorch(const Operator& op,
                            const BoundArguments& arguments,
                            PyRef result,
                            PyObject* judge,
                            int kernels_crossed) {
  const PyRef args = arguments.as_tuple(op.signature());
  const PyRef kwargs = arguments.as_dict(op.signature());
  if (!args || !kwargs) {
    return nullptr;
  }
  result = PyRef::steal(PyObject_CallFunctionObjArgs(judge, result.get(), args.get(), kwargs.get(), nullptr));
  for (int kernel = 0; result && kernel < kernels_crossed; ++kernel) {
    result = torch_compat::result_through_kernel(op.schema(), result.get());
  }
  return result.release();
}

}  // namespace

PyObject* settle_result(const Operator& op,
                        const BoundArguments& arguments,
                        PyRef result,
                        PyObject* judge,
                        int kernels_crossed) {
  if (is_settled(op, arguments, result.get())) [[likely]] {
    return result.release();
  }
  return settle_as_pytorch(op, arguments, std::move(result), judge, kernels_crossed);
}

}  // namespace dutyfree::call
