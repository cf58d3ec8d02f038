#pragma once

#include <c10/core/DispatchKeySet.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "call/signature.h"
#include "observe/reason.h"
#include "seeded_fault.h"
#include "torch_compat/tensor.h"

namespace dutyfree::call {

// A call as Python made it: by vectorcall (`keywords` is a tuple of names, their values follow the positional ones)
// or by tp_call (`keyword_dict`). Everything is borrowed from the caller.
struct CallArguments {
  PyObject* const* values = nullptr;
  std::size_t positional = 0;
  PyObject* keywords = nullptr;
  PyObject* keyword_dict = nullptr;
};

// One call's arguments in schema order, on the stack of the call. Values are borrowed from the caller, but for those
// that are converted (lists are copied, ints become floats), which this object owns. Belongs to the call's thread.
class BoundArguments {
 public:
  BoundArguments() = default;
  BoundArguments(const BoundArguments&) = delete;
  BoundArguments& operator=(const BoundArguments&) = delete;
  ~BoundArguments() {
    if (owned_ != 0) {
      release_owned();
    }
  }

  // Places, checks and converts every argument and gathers the tensors' keys. Has no effect that a user can see. On
  // failure PyTorch has to make the conversion or the error; no Python error is set.
  bool bind(const Signature& signature, const CallArguments& call) {
    return place(signature, call) && check(signature);
  }
  // The first half of it: every argument is where the schema has it, as the caller gave it.
  bool place(const Signature& signature, const CallArguments& call) {
    if (call.positional > signature.positional_count()) [[unlikely]] {
      return fail(observe::Reason::ArgumentCount);
    }
    const std::size_t count = signature.slots().size();
    PyObject** values = storage_.data() + 1;
    for (std::size_t index = 0; index < call.positional; ++index) {
      values[index] = call.values[index];
    }
    for (std::size_t index = call.positional; index < count; ++index) {
      values[index] = nullptr;
    }
    end_ = call.positional;
    if (call.keywords != nullptr || call.keyword_dict != nullptr) {
      end_ = count;
      named_ = true;
      if (!place_keywords(signature, call)) {
        return false;
      }
    }
    placed_ = true;
    return true;
  }
  bool placed() const { return placed_; }

  // For whoever converts placed values: a tensor's keys are gathered, or it is none that the direct path takes.
  void add_keys(c10::DispatchKeySet keys, bool may_require_grad) {
    keys_ = keys_ | keys;
    every_key_ = every_key_ | keys;
    may_require_grad_ |= may_require_grad;
  }
  [[gnu::always_inline]] bool check_tensor(const ValueType& type, PyObject* value) {
    if (!torch_compat::is_exact_tensor(value)) [[unlikely]] {
      return fail_for(value);
    }
    const c10::TensorImpl& tensor = *torch_compat::tensor_impl(value);
    const c10::DispatchKeySet keys = tensor.key_set();
    every_key_ = every_key_ | keys;
    if (!type.list || !type.optional) [[likely]] {
      keys_ = keys_ | keys;
    }
    may_require_grad_ |= torch_compat::has_autograd_state(tensor) && !(seeded(Fault::ListGradientIgnored) && type.list);
    return true;
  }
  // Whether all tensors are plain ones.
  bool check_keys() { return torch_compat::has_plain_keys(every_key_) || fail(observe::Reason::TensorKey); }
  // Returns false.
  bool fail(observe::Reason reason, int argument = -1) {
    failure_ = reason;
    failed_argument_ = argument;
    return false;
  }
  // Checks and converts placed values for a body in Python.
  bool check(const Signature& signature);

  // After a failed bind: why, and which argument it was (-1 for the call as a whole).
  observe::Reason failure() const { return failure_; }
  int failed_argument() const { return failed_argument_; }

  // Drops trailing arguments that equal their defaults and fills the other omitted ones in, as PyTorch does before a
  // body runs. False with a Python error set when memory runs out.
  bool settle_defaults(const Signature& signature) {
    passed_ = std::min(end_, signature.positional_count());
    return !signature.has_positional_defaults() || drop_and_fill_defaults(signature);
  }

  // Calls `body` with the settled arguments.
  [[gnu::always_inline]] PyObject* call(const Signature& signature, PyObject* body) const {
    if (signature.positional_count() == signature.slots().size()) [[likely]] {
      // The callee may write to the element before the first, and restores it: that is what element 0 is for.
      return call_body(body, storage_.data() + 1, passed_, nullptr);
    }
    return call_with_keywords(signature, body);
  }

  // The settled arguments as PyTorch would pass them, for cold paths. Null with a Python error set on failure.
  PyRef as_tuple() const;
  PyRef as_dict(const Signature& signature) const;

  // Union of the key sets of the tensors that the dispatcher looks at: all but those in optional lists.
  c10::DispatchKeySet keys() const { return keys_; }
  // The key that makes a tensor argument not plain, or Undefined.
  c10::DispatchKey special_key() const { return torch_compat::first_special_key(every_key_); }
  // False where no tensor argument can require a gradient: none has any autograd state.
  bool may_require_grad() const { return may_require_grad_; }

  PyObject* value(std::size_t slot) const { return storage_[slot + 1]; }
  // After settle_defaults: how many positional arguments the body gets, and whether it gets this keyword-only one.
  std::size_t passed() const { return passed_; }
  bool passes_keyword(const Signature& signature, std::size_t slot) const;

  // Calls `visit(TensorImpl&)` for every tensor of the given slots until it returns true; whether one did.
  template <typename Visit>
  bool any_tensor(const Signature& signature, const std::vector<std::uint8_t>& slots, Visit visit) const;

 private:
  bool place_keywords(const Signature& signature, const CallArguments& call);
  bool place_keyword(const Signature& signature, std::size_t first, PyObject* name, PyObject* value);
  bool drop_and_fill_defaults(const Signature& signature);
  // Of a slot that holds something else than one plain tensor.
  bool check_slot(const Slot& slot, std::size_t index, PyObject* value);
  void release_owned();
  [[gnu::cold]] bool fail_for(PyObject* no_tensor);
  bool copy_list(std::size_t slot, const ValueType& type, PyObject* sequence);
  void set_owned(std::size_t slot, PyObject* value);
  // PyObject_Vectorcall without its call into libpython: a body is nearly always a function, which has a vectorcall.
  [[gnu::always_inline]] static PyObject* call_body(PyObject* body,
                                                    PyObject* const* values,
                                                    std::size_t positional,
                                                    PyObject* keywords) {
    if (PyFunction_Check(body)) [[likely]] {
      return reinterpret_cast<PyFunctionObject*>(body)->vectorcall(body, values,
                                                                   positional | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                                                   keywords);
    }
    return call_any_body(body, values, positional, keywords);
  }
  [[gnu::noinline]] static PyObject* call_any_body(PyObject* body,
                                                   PyObject* const* values,
                                                   std::size_t positional,
                                                   PyObject* keywords);
  PyObject* call_with_keywords(const Signature& signature, PyObject* body) const;

  c10::DispatchKeySet keys_;
  c10::DispatchKeySet every_key_;  // the same of all tensors
  std::size_t end_ = 0;            // no value is placed from this slot on
  bool named_ = false;             // some were given by name, so that a value may be missing before one that is there
  bool placed_ = false;
  bool may_require_grad_ = false;
  std::uint64_t owned_ = 0;  // slots whose value belongs to this object
  std::size_t passed_ = 0;   // positional values that the body gets
  int failed_argument_ = -1;
  observe::Reason failure_ = observe::Reason::None;
  // Element 0 is scratch space for PY_VECTORCALL_ARGUMENTS_OFFSET; slot i is element i + 1, null when omitted.
  // Uninitialised beyond the schema's arguments: clearing 64 pointers costs more than a call may.
  std::array<PyObject*, kMaxArguments + 1> storage_;
};

template <typename Visit>
bool BoundArguments::any_tensor(const Signature& signature, const std::vector<std::uint8_t>& slots, Visit visit) const {
  for (const std::uint8_t slot : slots) {
    PyObject* value = this->value(slot);
    if (value == nullptr || value == Py_None) {
      continue;
    }
    if (!signature.slots()[slot].type.list) {
      if (visit(*torch_compat::tensor_impl(value))) {
        return true;
      }
      continue;
    }
    // A body may have changed the list it was given, so its elements are checked again.
    PyObject** items = PySequence_Fast_ITEMS(value);
    const Py_ssize_t past_end = seeded(Fault::ListReadPastEnd) ? 1 : 0;
    for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(value) + past_end; ++index) {
      if (torch_compat::is_exact_tensor(items[index]) && visit(*torch_compat::tensor_impl(items[index]))) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace dutyfree::call
