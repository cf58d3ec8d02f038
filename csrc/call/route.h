#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <cstdint>

#include "call/known_kernels.h"
#include "seeded_fault.h"
#include "torch_compat/dispatch_table.h"

namespace dutyfree::call {

// A way from a key set down a dispatch table, remembered so that its indices need not be worked out again: they follow
// from the key set alone. Whether the known kernels still stand there is looked up on every call.
class Route {
 public:
  struct Step {
    int index = 0;
    torch_compat::KernelIdentity identity = nullptr;
  };

  bool serves(c10::DispatchKeySet keys, std::uint64_t generation) const {
    return complete && keys_ == keys && generation_ == generation;
  }
  // Whether the table still holds the kernels that the route was laid over.
  bool stands(const c10::impl::OperatorEntry& entry) const {
    for (int step = 0; step < length_; ++step) {
      const Step& expected = steps_[static_cast<std::size_t>(step)];
      if (torch_compat::identity_at(entry, expected.index) != expected.identity &&
          !seeded(Fault::ReplacedKernelIgnored)) [[unlikely]] {
        return false;
      }
    }
    return true;
  }

  void start(c10::DispatchKeySet keys, std::uint64_t generation) {
    *this = Route();
    keys_ = keys;
    generation_ = generation;
  }
  void add(Step step) { steps_[static_cast<std::size_t>(length_++)] = step; }

  bool below_autograd = false;
  bool crosses_fallback = false;  // PyTorch's own autograd kernel, which passes calls on that need no gradient
  bool bumps_versions = false;
  bool complete = false;  // ends in a body
  int python_kernels = 0;
  AutogradKernel* autograd = nullptr;            // null: PyTorch has to record the gradients,
  const DirectKernel* typed_autograd = nullptr;  // or this C++ function runs where one is due
  BackendKernel* backend = nullptr;              // a Python body,
  const DirectKernel* typed_body = nullptr;      // or a C++ one

 private:
  c10::DispatchKeySet keys_;
  std::uint64_t generation_ = 0;
  int length_ = 0;
  std::array<Step, 3> steps_;  // an autograd kernel, a version bump and a body at most
};

}  // namespace dutyfree::call
