#include "call/typed_arguments.h"

#include <new>

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

#include "call/values.h"

namespace dutyfree::call {
namespace {

using observe::Reason;

static_assert(static_cast<int>(ValueKind::MemoryFormat) == static_cast<int>(Parameter::Kind::MemoryFormat) &&
              static_cast<int>(ValueKind::Scalar) == static_cast<int>(Parameter::Kind::Scalar));

std::int64_t value_of_int64(PyObject* exact_int64) {
#if PY_VERSION_HEX < 0x030C0000
  const Py_ssize_t digits = Py_SIZE(exact_int64);
  if (digits >= -1 && digits <= 1) [[likely]] {
    return digits * static_cast<std::int64_t>(reinterpret_cast<PyLongObject*>(exact_int64)->ob_digit[0]);
  }
#endif
  return PyLong_AsLongLong(exact_int64);
}

// The double of a float or an int, as PyTorch makes it. False for other values.
bool real_of(PyObject* value, double& real) {
  if (PyFloat_CheckExact(value)) [[likely]] {
    real = PyFloat_AS_DOUBLE(value);
    return true;
  }
  if (is_exact_int64(value)) {
    real = static_cast<double>(PyLong_AsLongLong(value));
    return true;
  }
  return false;
}

// The same for an int, and below for a bool.
bool integer_of(PyObject* value, std::int64_t& integer) {
  if (!is_exact_int64(value)) {
    return false;
  }
  integer = value_of_int64(value);
  return true;
}

bool boolean_of(PyObject* value, bool& boolean) {
  boolean = value == Py_True;
  return PyBool_Check(value);
}

}  // namespace

bool takes_typed_arguments(const Signature& signature, const DirectKernel& kernel) {
  const auto& slots = signature.slots();
  if (!signature.complete() || slots.size() != kernel.parameter_count || kernel.tensor_results > kMostTensorResults) {
    return false;
  }
  for (std::size_t index = 0; index < slots.size(); ++index) {
    const ValueType& type = slots[index].type;
    const Parameter expected{.kind = static_cast<Parameter::Kind>(type.boxed_kind),
                             .list = type.list,
                             .optional = type.optional,
                             .optional_element = type.optional_element};
    if (type.boxed_kind == ValueKind::Other || !(kernel.parameters[index] == expected)) {
      return false;
    }
  }
  return true;
}

TypedArguments::Room::~Room() {
  for (at::Tensor* tensor : tensors_) {
    tensor->~Tensor();
  }
}

template <typename T>
T* TypedArguments::Room::take(std::size_t count) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && alignof(T) <= alignof(std::uint64_t));
  const std::size_t words = (count * sizeof(T) + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t);
  if (used_ + words > kWords) {
    more_.emplace_back(new std::uint64_t[words]);
    return reinterpret_cast<T*>(more_.back().get());
  }
  T* place = reinterpret_cast<T*>(words_.data() + used_);
  used_ += words;
  return place;
}

bool TypedArguments::convert(const Signature& signature, BoundArguments& bound) {
  // Not the vector itself: what is written below could be its members, for all that the compiler knows.
  const Slot* const slots = signature.slots().data();
  const std::size_t count = signature.slots().size();
  c10::DispatchKeySet keys;
  bool may_require_grad = false;
  for (std::size_t index = 0; index < count; ++index) {
    const Slot& slot = slots[index];
    Value& value = values_[index];
    PyObject* object = bound.value(index);
    // The usual argument, without a look at what it is not.
    if (slot.type.is_tensor && object != nullptr && torch_compat::is_exact_tensor(object)) [[likely]] {
      const at::Tensor& tensor = THPVariable_Unpack(object);
      keys = keys | tensor.key_set();
      may_require_grad |= torch_compat::has_autograd_state(*tensor.unsafeGetTensorImpl());
      value.data = &tensor;
      continue;
    }
    if (object == nullptr) {
      if (!slot.has_default) [[unlikely]] {
        return bound.fail(Reason::ArgumentCount, static_cast<int>(index));
      }
      object = slot.default_value.get();
    }
    if (slot.type.optional) {
      value.size = 0;
      if (object == Py_None) {
        value.size = Value::Absent;
        continue;
      }
    }
    bool fits = true;
    if (slot.type.list) {
      fits = convert_list(slot.type, object, value, bound);
    } else if (slot.type.boxed_kind == ValueKind::Tensor) {
      fits = bound.check_tensor(slot.type, object);
      if (fits) [[likely]] {
        value.data = &THPVariable_Unpack(object);
      }
    } else {
      fits = convert_single(slot.type.boxed_kind, object, value) || bound.fail(Reason::ArgumentType);
    }
    if (!fits) [[unlikely]] {
      return bound.fail(bound.failure() == Reason::None ? Reason::ArgumentType : bound.failure(),
                        static_cast<int>(index));
    }
  }
  bound.add_keys(keys, may_require_grad);
  return bound.check_keys();
}

bool TypedArguments::convert_single(ValueKind kind, PyObject* object, Value& value) {
  switch (kind) {
    case ValueKind::Int:
      return integer_of(object, value.integer);
    case ValueKind::Float:
      return real_of(object, value.real);
    case ValueKind::Bool:
      return boolean_of(object, value.boolean);
    case ValueKind::Str: {
      Py_ssize_t size = 0;
      value.data = PyUnicode_CheckExact(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
      value.size = size;
      if (value.data == nullptr) {
        PyErr_Clear();
      }
      return value.data != nullptr;
    }
    case ValueKind::Scalar:
      if (PyBool_Check(object)) {
        value.boolean = object == Py_True;
        value.size = Value::Boolean;
      } else if (PyFloat_CheckExact(object)) {
        value.real = PyFloat_AS_DOUBLE(object);
        value.size = Value::Real;
      } else if (is_exact_int64(object)) {
        value.integer = value_of_int64(object);
        value.size = Value::Integer;
      } else {
        return false;
      }
      return true;
    case ValueKind::DType:
      if (!THPDtype_Check(object)) {
        return false;
      }
      value.integer = static_cast<std::int64_t>(reinterpret_cast<THPDtype*>(object)->scalar_type);
      return true;
    case ValueKind::Device:
      value.data = &reinterpret_cast<THPDevice*>(object)->device;
      return THPDevice_Check(object);
    case ValueKind::Layout:
      if (!THPLayout_Check(object)) {
        return false;
      }
      value.integer = static_cast<std::int64_t>(reinterpret_cast<THPLayout*>(object)->layout);
      return true;
    case ValueKind::MemoryFormat:
      if (!THPMemoryFormat_Check(object)) {
        return false;
      }
      value.integer = static_cast<std::int64_t>(reinterpret_cast<THPMemoryFormat*>(object)->memory_format);
      return true;
    case ValueKind::Tensor:
    case ValueKind::Other:
      break;
  }
  return false;
}

// A list of numbers: `read(object, number)` says whether an element is one.
template <typename T, typename Read>
bool TypedArguments::take_each(PyObject* const* items, std::size_t count, Value& value, Read read) {
  T* numbers = room().take<T>(count);
  value.data = numbers;
  for (std::size_t index = 0; index < count; ++index) {
    if (!read(items[index], numbers[index])) {
      return false;
    }
  }
  return true;
}

// Nothing here runs Python code, so the sequence stays as it is.
bool TypedArguments::convert_list(const ValueType& type, PyObject* sequence, Value& value, BoundArguments& bound) try {
  if (!is_sequence(sequence)) {
    return false;
  }
  PyObject** items = PySequence_Fast_ITEMS(sequence);
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence));
  value.size = static_cast<std::int64_t>(count);
  switch (type.boxed_kind) {
    case ValueKind::Tensor: {
      auto* tensors = room().take<at::Tensor>(count);
      value.data = tensors;
      static const at::Tensor missing;
      for (std::size_t index = 0; index < count; ++index) {
        const bool absent = items[index] == Py_None && type.optional_element;
        if (!absent && !bound.check_tensor(type, items[index])) {
          return false;
        }
        room().own(tensors + index, absent ? missing : THPVariable_Unpack(items[index]));
      }
      return true;
    }
    case ValueKind::Int:
      return take_each<std::int64_t>(items, count, value, integer_of);
    case ValueKind::Float:
      return take_each<double>(items, count, value, real_of);
    case ValueKind::Bool:
      return take_each<bool>(items, count, value, boolean_of);
    default:
      return false;
  }
} catch (const std::bad_alloc&) {
  return false;  // PyTorch meets the same shortage, and says so
}

void TypedArguments::own_tensors(const Signature& signature) {
  for (const std::uint8_t slot : signature.tensor_slots()) {
    const ValueType& type = signature.slots()[slot].type;
    Value& value = values_[slot];
    if (type.list || (type.optional && value.size == Value::Absent)) {
      continue;  // lists own theirs
    }
    auto* place = room().take<at::Tensor>(1);
    room().own(place, *static_cast<const at::Tensor*>(value.data));
    value.data = place;
  }
}

}  // namespace dutyfree::call
