#include "call/boxed.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

#include "call/values.h"
#include "torch_compat/conversion.h"
#include "torch_compat/gil.h"
#include "torch_compat/thread_state.h"
#include "torch_compat/torch_function.h"

namespace dutyfree::call {
namespace {

using observe::Reason;

// The memory of boxed calls that are over, for the next ones: a stack, and a list of tensors, both empty. Guarded by
// the GIL.
torch::jit::Stack spare_stack;
std::optional<c10::List<at::Tensor>> spare_list;

c10::List<at::Tensor> empty_list() {
  if (!spare_list.has_value()) {
    return c10::List<at::Tensor>();
  }
  const c10::List<at::Tensor> list = *spare_list;
  spare_list.reset();
  return list;
}

enum class Boxing : std::uint8_t {
  Done,
  Unknown,     // PyTorch's own conversion may box it
  Mismatch,    // nor does that fit the schema
  Failed,      // or it has to be left to PyTorch, with its error if there is one
  Overridden,  // a __torch_function__ has to see the call
};

// A tensor that the dispatcher may get as it is.
Boxing look_at_tensor(PyObject* value) {
  if (!torch_compat::is_exact_tensor(value)) [[unlikely]] {
    if (!torch_compat::is_tensor(value)) {
      return Boxing::Unknown;
    }
    if (torch_compat::overrides_torch_function(value)) {
      return Boxing::Overridden;
    }
  }
  return Boxing::Done;
}

Boxing box_single(ValueKind kind, PyObject* value, torch::jit::Stack& stack) {
  switch (kind) {
    case ValueKind::Tensor: {
      const Boxing boxing = look_at_tensor(value);
      if (boxing == Boxing::Done) [[likely]] {
        stack.emplace_back(THPVariable_Unpack(value));
      }
      return boxing;
    }
    case ValueKind::Int:
      if (!is_exact_int64(value)) {
        return Boxing::Unknown;
      }
      stack.emplace_back(static_cast<std::int64_t>(PyLong_AsLongLong(value)));
      return Boxing::Done;
    case ValueKind::Float:
      if (PyFloat_CheckExact(value)) {
        stack.emplace_back(PyFloat_AS_DOUBLE(value));
      } else if (is_exact_int64(value)) {
        stack.emplace_back(static_cast<double>(PyLong_AsLongLong(value)));
      } else {
        return Boxing::Unknown;
      }
      return Boxing::Done;
    case ValueKind::Bool:
      if (!PyBool_Check(value)) {
        return Boxing::Unknown;
      }
      stack.emplace_back(value == Py_True);
      return Boxing::Done;
    case ValueKind::Scalar:
      if (PyFloat_CheckExact(value)) {
        stack.emplace_back(PyFloat_AS_DOUBLE(value));
      } else if (is_exact_int64(value)) {
        stack.emplace_back(static_cast<std::int64_t>(PyLong_AsLongLong(value)));
      } else {
        return Boxing::Unknown;
      }
      return Boxing::Done;
    case ValueKind::DType:
      if (!THPDtype_Check(value)) {
        return Boxing::Unknown;
      }
      stack.emplace_back(static_cast<std::int64_t>(reinterpret_cast<THPDtype*>(value)->scalar_type));
      return Boxing::Done;
    case ValueKind::Device:
      if (!THPDevice_Check(value)) {
        return Boxing::Unknown;
      }
      stack.emplace_back(reinterpret_cast<THPDevice*>(value)->device);
      return Boxing::Done;
    case ValueKind::Layout:
      if (!THPLayout_Check(value)) {
        return Boxing::Unknown;
      }
      stack.emplace_back(static_cast<std::int64_t>(reinterpret_cast<THPLayout*>(value)->layout));
      return Boxing::Done;
    case ValueKind::MemoryFormat:
      if (!THPMemoryFormat_Check(value)) {
        return Boxing::Unknown;
      }
      stack.emplace_back(static_cast<std::int64_t>(reinterpret_cast<THPMemoryFormat*>(value)->memory_format));
      return Boxing::Done;
    case ValueKind::Str:
    case ValueKind::Other:
      break;
  }
  return Boxing::Unknown;
}

// Boxes a sequence of tensors into `list`. The elements are only looked at, so nothing can change the sequence
// meanwhile but __torch_function__'s look-up on a subclass: its size is read anew.
template <typename Element>
Boxing box_tensors(PyObject* sequence, c10::List<Element> list, torch::jit::Stack& stack) {
  list.reserve(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence)));
  for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(sequence); ++index) {
    const PyRef item = PyRef::borrow(PySequence_Fast_ITEMS(sequence)[index]);
    if constexpr (std::is_same_v<Element, std::optional<at::Tensor>>) {
      if (item.get() == Py_None) {
        list.push_back(std::nullopt);
        continue;
      }
    }
    const Boxing boxing = look_at_tensor(item.get());
    if (boxing != Boxing::Done) [[unlikely]] {
      return boxing;
    }
    list.push_back(THPVariable_Unpack(item.get()));
  }
  stack.emplace_back(std::move(list));
  return Boxing::Done;
}

Boxing box_ints(PyObject* sequence, torch::jit::Stack& stack) {
  c10::List<std::int64_t> list;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence);
  list.reserve(static_cast<std::size_t>(size));
  for (Py_ssize_t index = 0; index < size; ++index) {
    PyObject* item = PySequence_Fast_ITEMS(sequence)[index];
    if (!is_exact_int64(item)) [[unlikely]] {
      return Boxing::Unknown;
    }
    list.push_back(static_cast<std::int64_t>(PyLong_AsLongLong(item)));
  }
  stack.emplace_back(std::move(list));
  return Boxing::Done;
}

Boxing box_list(const ValueType& type, PyObject* value, torch::jit::Stack& stack) {
  if (!is_sequence(value)) {
    return Boxing::Unknown;
  }
  if (type.boxed_kind == ValueKind::Tensor) {
    return type.optional_element ? box_tensors(value, c10::List<std::optional<at::Tensor>>(), stack)
                                 : box_tensors(value, empty_list(), stack);
  }
  return type.boxed_kind == ValueKind::Int && !type.optional_element ? box_ints(value, stack) : Boxing::Unknown;
}

// Whether a conversion can be seen by nobody: where another argument is refused later, PyTorch converts again. A tensor
// that becomes a number may warn, a class of Python's may run code.
bool converts_silently(PyObject* value) {
  const PyTypeObject* type = Py_TYPE(value);
  if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(value); ++index) {
      PyObject* item = PySequence_Fast_ITEMS(value)[index];
      if (PyList_Check(item) || PyTuple_Check(item) || !converts_silently(item)) {
        return false;
      }
    }
    return true;
  }
  if (PyIter_Check(value)) {
    return false;  // it can be read once only
  }
  if (torch_compat::is_tensor(value)) {
    const c10::TensorImpl& tensor = *torch_compat::tensor_impl(value);
    return !torch_compat::requires_grad(tensor) && !tensor.key_set().has(c10::DispatchKey::Python) &&
           !torch_compat::ThreadState::here().torch_dispatch_active();
  }
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) {
    return true;
  }
  const std::string_view name = type->tp_name;
  return name == "SymInt" || name == "SymFloat" || name == "SymBool";
}

// PyTorch's own conversion.
Boxing box_as_pytorch(const Operator& op, std::size_t slot, PyObject* value, torch::jit::Stack& stack) {
  if (!converts_silently(value)) {
    return Boxing::Failed;
  }
  c10::IValue converted;
  switch (torch_compat::argument_as_pytorch(op.schema().arguments()[slot], value, op.takes_numbers_as_tensors(),
                                            converted)) {
    case torch_compat::Conversion::Done:
      stack.push_back(std::move(converted));
      return Boxing::Done;
    case torch_compat::Conversion::Mismatch:
      return Boxing::Mismatch;
    case torch_compat::Conversion::Failed:
      break;
  }
  return Boxing::Failed;
}

// Whether a value that stands where no tensor belongs is, or holds, a tensor that PyTorch would ask first.
bool is_overridden(PyObject* value) {
  if (torch_compat::is_tensor(value)) {
    return look_at_tensor(value) == Boxing::Overridden;
  }
  if (!PyList_Check(value) && !PyTuple_Check(value)) {
    return false;
  }
  for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(value); ++index) {
    const PyRef item = PyRef::borrow(PySequence_Fast_ITEMS(value)[index]);
    if (torch_compat::is_tensor(item.get()) && look_at_tensor(item.get()) == Boxing::Overridden) {
      return true;
    }
  }
  return false;
}

Reason refusal(Boxing boxing) {
  switch (boxing) {
    case Boxing::Overridden:
      return Reason::TorchFunctionArgument;
    case Boxing::Mismatch:
      return Reason::ArgumentMismatch;
    default:
      return Reason::ArgumentType;
  }
}

// A list that no kernel kept serves the next call.
void keep_list(const c10::SmallVectorImpl<c10::IValue>& kept) {
  for (const c10::IValue& value : kept) {
    if (value.isTensorList() && value.use_count() == 1) {
      const c10::List<at::Tensor> list = value.toTensorList();
      list.clear();
      spare_list = list;
      return;
    }
  }
}

}  // namespace

Reason box(const Operator& op, const BoundArguments& arguments, torch::jit::Stack& stack, int& argument) {
  const auto& slots = op.signature().slots();
  stack.swap(spare_stack);
  stack.reserve(std::max(slots.size(), op.signature().results().size()));
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    const ValueType& type = slots[slot].type;
    PyObject* value = arguments.value(slot);
    if (value == nullptr) {
      if (!slots[slot].has_default) [[unlikely]] {
        argument = static_cast<int>(slot);
        return Reason::ArgumentCount;
      }
      stack.push_back(op.schema().arguments()[slot].default_value().value_or(c10::IValue()));
      continue;
    }
    if (value == Py_None && type.optional) {
      stack.emplace_back();
      continue;
    }
    Boxing boxing = type.list ? box_list(type, value, stack) : box_single(type.boxed_kind, value, stack);
    if (boxing == Boxing::Unknown) [[unlikely]] {
      boxing = is_overridden(value) ? Boxing::Overridden : box_as_pytorch(op, slot, value, stack);
    }
    if (boxing != Boxing::Done) [[unlikely]] {
      argument = static_cast<int>(slot);
      return refusal(boxing);
    }
  }
  return Reason::None;
}

PyObject* run_boxed(const Operator& op, torch::jit::Stack& stack) {
  PyRef result;
  // A tensor's last C++ reference takes the GIL when it goes, which without the GIL means to wait for it. So the
  // kernels, which consume the stack, do not have the last ones.
  const c10::SmallVector<c10::IValue, 8> kept(stack.begin(), stack.end());
  try {
    {
      const torch_compat::GilReleased released;
      op.handle().callBoxed(&stack);
    }
    result = torch_compat::stack_as_python(stack);
  } catch (...) {
    torch_compat::set_python_error();
  }
  stack.clear();
  keep_list(kept);
  if (stack.capacity() > spare_stack.capacity()) {
    spare_stack.swap(stack);
  }
  return result.release();
}

}  // namespace dutyfree::call
