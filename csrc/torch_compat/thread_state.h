#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <memory>
#include <vector>

// The calling thread's state that decides how a call is dispatched. It is read on every call and never kept.
namespace dutyfree::torch_compat {

using FunctionModeStack = std::vector<std::shared_ptr<c10::SafePyObject>>;

const FunctionModeStack& function_mode_stack(const at::impl::PythonTorchFunctionTLS& state);
template <auto Member>
struct FunctionModeStackAccess {
  friend const FunctionModeStack& function_mode_stack(const at::impl::PythonTorchFunctionTLS& state) {
    return state.*Member;
  }
};
template struct FunctionModeStackAccess<&at::impl::PythonTorchFunctionTLS::stack_>;

bool skip_next_function(const at::impl::PythonTorchFunctionTLS& state);
template <auto Member>
struct SkipNextAccess {
  friend bool skip_next_function(const at::impl::PythonTorchFunctionTLS& state) { return state.*Member; }
};
template struct SkipNextAccess<&at::impl::PythonTorchFunctionTLS::skip_next_>;

// A TorchFunctionMode is on the stack, or the next __torch_function__ dispatch is to be skipped. A mode that is
// disabled counts too: that call goes PyTorch's way and is right, if slower.
inline bool torch_function_state_active() {
  const auto& state = at::impl::PythonTorchFunctionTLS::get_state();
  return !function_mode_stack(state).empty() || skip_next_function(state);
}

// Counts modes even where the Python key is excluded: PyTorch's Python kernels look at the stack, not at the key.
inline bool torch_dispatch_mode_active() { return c10::impl::TorchDispatchModeTLS::stack_len() != 0; }

inline bool profiler_active() { return at::hasCallbacks(); }

// Keys that a thread may include without leaving the direct path: the defaults, and autocast, which is a
// fallthrough unless a rule is registered (then the walk meets the rule's kernel).
inline constexpr c10::DispatchKeySet kOrdinaryIncludedKeys = c10::default_included_set | c10::autocast_dispatch_keyset;

// One thread's dispatch key sets, read through one thread-local address. Valid on the thread that made it.
class LocalKeySets {
 public:
  LocalKeySets() : raw_(&c10::impl::raw_local_dispatch_key_set) {}

  c10::DispatchKeySet included() const { return raw_->included(); }
  c10::DispatchKeySet excluded() const { return raw_->excluded(); }
  void set_excluded(c10::DispatchKeySet keys) { raw_->set_excluded(keys); }

 private:
  c10::impl::PODLocalDispatchKeySet* raw_;
};

// Excludes the autograd keys while a body runs, as at::AutoDispatchBelowAutograd does, without a second thread-local
// look-up. On exit it takes back what it excluded and leaves what the body itself changed.
class BelowAutograd {
 public:
  BelowAutograd(LocalKeySets local, bool active) : local_(local) {
    if (active) {
      const c10::DispatchKeySet excluded = local_.excluded();
      added_ = c10::autograd_dispatch_keyset - excluded;
      local_.set_excluded(excluded | added_);
    }
  }
  ~BelowAutograd() {
    if (!added_.empty()) {
      local_.set_excluded(local_.excluded() - added_);
    }
  }
  BelowAutograd(const BelowAutograd&) = delete;
  BelowAutograd& operator=(const BelowAutograd&) = delete;

 private:
  LocalKeySets local_;
  c10::DispatchKeySet added_;
};

}  // namespace dutyfree::torch_compat
