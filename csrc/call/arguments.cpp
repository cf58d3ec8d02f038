#include "call/arguments.h"

#include <algorithm>
#include <cmath>

#include "call/values.h"
#include "seeded_fault.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

namespace dutyfree::call {
namespace {

using observe::Reason;

enum class Fit : std::uint8_t { Passes, Converts, Fails };

// PyTorch stores a str as UTF-8; one that has no UTF-8 form is an error that PyTorch words.
bool has_utf8(PyObject* exact_str) {
  if (PyUnicode_IS_ASCII(exact_str)) [[likely]] {
    return true;
  }
  if (PyUnicode_AsUTF8(exact_str) != nullptr) {
    return true;
  }
  PyErr_Clear();
  return false;
}

Fit fit_scalar(ValueKind kind, PyObject* value) {
  switch (kind) {
    case ValueKind::Int:
      return is_exact_int64(value) ? Fit::Passes : Fit::Fails;
    case ValueKind::Float:
      if (PyFloat_CheckExact(value)) [[likely]] {
        return Fit::Passes;
      }
      return is_exact_int64(value) ? (seeded(Fault::IntUnconverted) ? Fit::Passes : Fit::Converts) : Fit::Fails;
    case ValueKind::Bool:
      return PyBool_Check(value) ? Fit::Passes : Fit::Fails;
    case ValueKind::Str:
      return PyUnicode_CheckExact(value) && has_utf8(value) ? Fit::Passes : Fit::Fails;
    case ValueKind::Scalar:
      return is_exact_number(value) ? Fit::Passes : Fit::Fails;
    case ValueKind::DType:
      return THPDtype_Check(value) ? Fit::Passes : Fit::Fails;
    case ValueKind::Device:
      return THPDevice_Check(value) ? Fit::Passes : Fit::Fails;
    case ValueKind::Tensor:
    case ValueKind::Layout:
    case ValueKind::MemoryFormat:
    case ValueKind::Other:
      break;
  }
  return Fit::Fails;
}

// Equality as the dispatcher has it between values of one schema type. Runs on converted values only, whose types are
// exact, so no Python code of a user's can run.
bool equals_default(const Slot& slot, PyObject* value) {
  PyObject* expected = slot.default_value.get();
  if (value == expected) {
    // Identity is equality but for NaN.
    return !PyFloat_CheckExact(value) || !std::isnan(PyFloat_AS_DOUBLE(value));
  }
  if (Py_TYPE(value) != Py_TYPE(expected)) {
    return false;
  }
  if (slot.type.kind == ValueKind::Tensor) {
    // No schema has a tensor as a default, so only lists get here: two empty ones.
    return PyList_CheckExact(value) && PyList_GET_SIZE(value) == 0 && PyList_GET_SIZE(expected) == 0;
  }
  if (PyBool_Check(value) || value == Py_None) {
    return false;
  }
  const int equal = PyObject_RichCompareBool(value, expected, Py_EQ);
  if (equal < 0) {
    PyErr_Clear();
  }
  return equal > 0;
}

}  // namespace

void BoundArguments::release_owned() {
  for (std::uint64_t rest = owned_; rest != 0; rest &= rest - 1) {
    Py_DECREF(storage_[static_cast<std::size_t>(__builtin_ctzll(rest)) + 1]);
  }
}

bool BoundArguments::place_keywords(const Signature& signature, const CallArguments& call) {
  if (call.keywords != nullptr) {
    PyObject* const* keyword_values = call.values + call.positional;
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(call.keywords); ++index) {
      if (!place_keyword(signature, call.positional, PyTuple_GET_ITEM(call.keywords, index), keyword_values[index])) {
        return false;
      }
    }
    return true;
  }
  Py_ssize_t position = 0;
  PyObject *name = nullptr, *value = nullptr;
  while (PyDict_Next(call.keyword_dict, &position, &name, &value)) {
    if (!place_keyword(signature, call.positional, name, value)) {
      return false;
    }
  }
  return true;
}

bool BoundArguments::place_keyword(const Signature& signature, std::size_t first, PyObject* name, PyObject* value) {
  const auto& slots = signature.slots();
  for (std::size_t index = first; index < slots.size(); ++index) {
    if (slots[index].name.get() == name) [[likely]] {
      const bool misplaced = seeded(Fault::KeywordMisplaced) && index + 1 < slots.size();
      storage_[index + 1 + (misplaced ? 1 : 0)] = value;
      return true;
    }
  }
  // Keyword names in source code are interned, those of a dict made at run time may not be.
  for (std::size_t index = first; index < slots.size(); ++index) {
    if (PyUnicode_Check(name) && PyUnicode_Compare(slots[index].name.get(), name) == 0) {
      storage_[index + 1] = value;
      return true;
    }
  }
  return fail(Reason::ArgumentName);
}

bool BoundArguments::fail_for(PyObject* no_tensor) {
  return fail(torch_compat::is_tensor(no_tensor) ? Reason::TensorSubclass : Reason::ArgumentType);
}

bool BoundArguments::check(const Signature& signature) {
  const Slot* slots = signature.slots().data();
  PyObject* const* values = storage_.data() + 1;
  // What a call by position leaves out at the end has nothing to check, unless something is missing.
  const std::size_t end = end_ >= signature.required_count() ? end_ : signature.slots().size();
  // In registers: through this object each tensor would wait for the one before it.
  c10::DispatchKeySet keys;
  bool may_require_grad = false;
  for (std::size_t index = 0; index < end; ++index) {
    PyObject* value = values[index];
    if (slots[index].type.is_tensor && value != nullptr && torch_compat::is_exact_tensor(value)) [[likely]] {
      const c10::TensorImpl& tensor = *torch_compat::tensor_impl(value);
      keys = keys | tensor.key_set();
      may_require_grad |= torch_compat::has_autograd_state(tensor);
    } else if (!check_slot(slots[index], index, value)) [[unlikely]] {
      failed_argument_ = static_cast<int>(index);
      return false;
    }
  }
  add_keys(keys, may_require_grad);
  return check_keys();
}

bool BoundArguments::check_slot(const Slot& slot, std::size_t index, PyObject* value) {
  if (value == nullptr) {
    return slot.has_default || fail(Reason::ArgumentCount);
  }
  if (value == Py_None && (slot.type.optional || seeded(Fault::NoneAccepted))) {
    return true;
  }
  if (slot.type.list) {
    return copy_list(index, slot.type, value);
  }
  if (slot.type.kind == ValueKind::Tensor) {
    return check_tensor(slot.type, value);
  }
  const Fit fit = fit_scalar(slot.type.kind, value);
  if (fit == Fit::Converts) [[unlikely]] {
    PyObject* converted = int_as_float(value);
    if (converted == nullptr) {
      return fail(Reason::ArgumentType);
    }
    set_owned(index, converted);
    return true;
  }
  return fit == Fit::Passes || fail(Reason::ArgumentType);
}

// The elements are checked as they are copied: making the list may run a finaliser that changes the caller's list, and
// the copy is what the body gets.
bool BoundArguments::copy_list(std::size_t slot, const ValueType& type, PyObject* sequence) {
  if (!is_sequence(sequence)) {
    return fail(Reason::ArgumentType);
  }
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence);
  PyRef list = PyRef::steal(PyList_New(size));
  if (!list || PySequence_Fast_GET_SIZE(sequence) != size) [[unlikely]] {
    PyErr_Clear();
    return fail(Reason::ArgumentType);
  }
  PyObject** items = PySequence_Fast_ITEMS(sequence);
  for (Py_ssize_t index = 0; index < size; ++index) {
    PyObject* item = items[index];
    if (item == Py_None && type.optional_element) {
      // passes
    } else if (type.kind == ValueKind::Tensor) {
      if (!check_tensor(type, item)) [[unlikely]] {
        return false;
      }
    } else {
      const Fit fit = fit_scalar(type.kind, item);
      if (fit == Fit::Converts) {
        item = int_as_float(item);
        if (item == nullptr) {
          return fail(Reason::ArgumentType);
        }
        PyList_SET_ITEM(list.get(), index, item);
        continue;
      }
      if (fit == Fit::Fails) [[unlikely]] {
        return fail(Reason::ArgumentType);
      }
    }
    Py_INCREF(item);
    PyList_SET_ITEM(list.get(), index, item);
  }
  if (seeded(Fault::ListUncopied) && PyList_CheckExact(sequence)) {
    return true;
  }
  set_owned(slot, list.release());
  return true;
}

void BoundArguments::set_owned(std::size_t slot, PyObject* value) {
  storage_[slot + 1] = value;
  if (value != nullptr) {
    owned_ |= std::uint64_t{1} << (slot + (seeded(Fault::ShiftTooFar) ? 64 : 0));
  }
}

bool BoundArguments::drop_and_fill_defaults(const Signature& signature) {
  const auto& slots = signature.slots();
  while (passed_ > 0) {
    const Slot& slot = slots[passed_ - 1];
    if (!slot.has_default || seeded(Fault::DefaultsPassed)) {
      break;
    }
    PyObject* given = value(passed_ - 1);
    if (given != nullptr && !equals_default(slot, given)) {
      break;
    }
    --passed_;
  }
  if (!named_) {
    return true;
  }
  for (std::size_t index = 0; index < passed_; ++index) {
    if (value(index) != nullptr) {
      continue;
    }
    PyObject* fill = slots[index].default_value.get();
    if (!PyList_CheckExact(fill)) {
      storage_[index + 1] = fill;
      continue;
    }
    set_owned(index, PyList_GetSlice(fill, 0, PyList_GET_SIZE(fill)));
    if (value(index) == nullptr) {
      return false;
    }
  }
  return true;
}

bool BoundArguments::passes_keyword(const Signature& signature, std::size_t slot) const {
  const Slot& keyword = signature.slots()[slot];
  PyObject* given = value(slot);
  return given != nullptr && !(keyword.has_default && equals_default(keyword, given));
}

PyObject* BoundArguments::call_any_body(PyObject* body,
                                        PyObject* const* values,
                                        std::size_t positional,
                                        PyObject* keywords) {
  // Functions count their own recursion; a callable written in C (an operator is one) need not.
  if (Py_EnterRecursiveCall(" while calling an operator's body") != 0) {
    return nullptr;
  }
  PyObject* result = PyObject_Vectorcall(body, values, positional | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords);
  Py_LeaveRecursiveCall();
  return result;
}

PyObject* BoundArguments::call_with_keywords(const Signature& signature, PyObject* body) const {
  const std::size_t count = signature.slots().size();
  const std::size_t first_keyword = signature.positional_count();
  std::array<PyObject*, kMaxArguments + 1> values;
  std::array<PyObject*, kMaxArguments> names;
  std::copy_n(storage_.data() + 1, passed_, values.data() + 1);
  std::size_t keywords = 0;
  for (std::size_t slot = first_keyword; slot < count; ++slot) {
    if (passes_keyword(signature, slot)) {
      values[1 + passed_ + keywords] = value(slot);
      names[keywords++] = signature.slots()[slot].name.get();
    }
  }
  PyRef keyword_names;
  if (keywords > 0) {
    keyword_names = PyRef::steal(PyTuple_New(static_cast<Py_ssize_t>(keywords)));
    if (!keyword_names) {
      return nullptr;
    }
    for (std::size_t index = 0; index < keywords; ++index) {
      Py_INCREF(names[index]);
      PyTuple_SET_ITEM(keyword_names.get(), static_cast<Py_ssize_t>(index), names[index]);
    }
  }
  return call_body(body, values.data() + 1, passed_, keyword_names.get());
}

PyRef BoundArguments::as_tuple() const {
  PyRef tuple = PyRef::steal(PyTuple_New(static_cast<Py_ssize_t>(passed_)));
  for (std::size_t index = 0; tuple && index < passed_; ++index) {
    Py_INCREF(value(index));
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(index), value(index));
  }
  return tuple;
}

PyRef BoundArguments::as_dict(const Signature& signature) const {
  PyRef dict = PyRef::steal(PyDict_New());
  for (std::size_t slot = signature.positional_count(); dict && slot < signature.slots().size(); ++slot) {
    if (passes_keyword(signature, slot) &&
        PyDict_SetItem(dict.get(), signature.slots()[slot].name.get(), value(slot)) < 0) {
      return {};
    }
  }
  return dict;
}

}  // namespace dutyfree::call
