#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <array>
#include <memory>
#include <optional>
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

using DispatchModeStack = std::vector<std::shared_ptr<c10::impl::PyObject_TorchDispatchMode>>;
using InfraModes = std::array<std::optional<std::shared_ptr<c10::impl::PyObject_TorchDispatchMode>>,
                              static_cast<std::size_t>(c10::impl::TorchDispatchModeKey::NUM_MODE_KEYS)>;

const DispatchModeStack& dispatch_mode_stack(const c10::impl::TorchDispatchModeTLS& state);
template <auto Member>
struct DispatchModeStackAccess {
  friend const DispatchModeStack& dispatch_mode_stack(const c10::impl::TorchDispatchModeTLS& state) {
    return state.*Member;
  }
};
template struct DispatchModeStackAccess<&c10::impl::TorchDispatchModeTLS::stack_>;

const InfraModes& infra_modes(const c10::impl::TorchDispatchModeTLS& state);
template <auto Member>
struct InfraModesAccess {
  friend const InfraModes& infra_modes(const c10::impl::TorchDispatchModeTLS& state) { return state.*Member; }
};
template struct InfraModesAccess<&c10::impl::TorchDispatchModeTLS::infra_modes_>;

// Keys that a thread may include without leaving the direct path: the defaults, and autocast, which is a
// fallthrough unless a rule is registered (then the walk meets the rule's kernel).
inline constexpr c10::DispatchKeySet kOrdinaryIncludedKeys = c10::default_included_set | c10::autocast_dispatch_keyset;

// Where one thread's state lives: addresses, which stay the same for the thread's life, never values. They are kept
// because each costs a call into another library to find. Valid on the thread that asked.
class ThreadState {
 public:
  static const ThreadState& here() {
    if (here_.keys_ == nullptr) [[unlikely]] {
      here_.locate();
    }
    return here_;
  }

  c10::DispatchKeySet included() const { return keys_->included(); }
  c10::DispatchKeySet excluded() const { return keys_->excluded(); }
  void set_excluded(c10::DispatchKeySet keys) const { keys_->set_excluded(keys); }

  bool grad_mode() const { return autograd_->get_grad_mode(); }
  bool inference_mode() const { return autograd_->get_inference_mode(); }

  // A TorchFunctionMode is on the stack, or the next __torch_function__ dispatch is to be skipped. A mode that is
  // disabled counts too: that call goes PyTorch's way and is right, if slower.
  bool torch_function_active() const {
    return !function_mode_stack(*functions_).empty() || skip_next_function(*functions_);
  }

  // Counts modes even where the Python key is excluded: PyTorch's Python kernels look at the stack, not at the key.
  bool torch_dispatch_active() const {
    if (!dispatch_mode_stack(*modes_).empty()) {
      return true;
    }
    for (const auto& mode : infra_modes(*modes_)) {
      if (mode.has_value()) {
        return true;
      }
    }
    return false;
  }

 private:
  void locate();

  // In the static TLS block, which glibc keeps room in for small variables of modules that are loaded later: reading it
  // is one instruction instead of a call of __tls_get_addr.
  [[gnu::tls_model("initial-exec")]] static thread_local constinit ThreadState here_;

  c10::impl::PODLocalDispatchKeySet* keys_ = nullptr;
  const c10::AutogradState* autograd_ = nullptr;
  const at::impl::PythonTorchFunctionTLS* functions_ = nullptr;
  const c10::impl::TorchDispatchModeTLS* modes_ = nullptr;
};

// Excludes the autograd keys while a body runs, as at::AutoDispatchBelowAutograd does. On exit it takes back what it
// excluded and leaves what the body itself changed.
class BelowAutograd {
 public:
  BelowAutograd(const ThreadState& thread, bool active) : thread_(thread) {
    if (active) {
      const c10::DispatchKeySet excluded = thread_.excluded();
      added_ = c10::autograd_dispatch_keyset - excluded;
      thread_.set_excluded(excluded | added_);
    }
  }
  ~BelowAutograd() {
    if (!added_.empty()) {
      thread_.set_excluded(thread_.excluded() - added_);
    }
  }
  BelowAutograd(const BelowAutograd&) = delete;
  BelowAutograd& operator=(const BelowAutograd&) = delete;

 private:
  const ThreadState& thread_;
  c10::DispatchKeySet added_;
};

}  // namespace dutyfree::torch_compat
