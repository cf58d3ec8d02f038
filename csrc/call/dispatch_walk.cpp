#include "call/dispatch_walk.h"

#include "torch_compat/dispatch_table.h"
#include "torch_compat/tensor.h"

namespace dutyfree::call {
namespace {

using observe::Path;
using observe::Reason;

// The thread's own reasons to leave the direct path.
Reason thread_reason(c10::DispatchKeySet included) {
  if (!(included - torch_compat::kOrdinaryIncludedKeys).empty()) [[unlikely]] {
    return torch_compat::torch_dispatch_mode_active() ? Reason::DispatchMode : Reason::ThreadState;
  }
  if (torch_compat::torch_function_state_active()) [[unlikely]] {
    return Reason::TorchFunctionMode;
  }
  if (torch_compat::torch_dispatch_mode_active()) [[unlikely]] {
    return Reason::DispatchMode;
  }
  if (torch_compat::profiler_active()) [[unlikely]] {
    return Reason::Profiler;
  }
  return Reason::None;
}

bool needs_gradient(const Operator& op, const BoundArguments& arguments) {
  return c10::GradMode::is_enabled() &&
         arguments.any_tensor(op.signature(), op.signature().tensor_slots(),
                              [](const c10::TensorImpl& tensor) { return torch_compat::requires_grad(tensor); });
}

bool mutates_inference_tensor(const Operator& op, const BoundArguments& arguments) {
  return arguments.any_tensor(op.signature(), op.signature().mutated_slots(), [](const c10::TensorImpl& tensor) {
    return !torch_compat::can_bump_version(tensor);
  });
}

// From the kernel that the dispatcher would call first down to the body.
void walk(Operator& op, c10::DispatchKeySet keys, const BoundArguments& arguments, Decision& decision) {
  for (;;) {
    const c10::KernelFunction* found = torch_compat::lookup(op.entry(), keys);
    KnownKernel* known =
        found == nullptr ? nullptr : op.kernels().find(torch_compat::kernel_identity(*found));
    if (known == nullptr) [[unlikely]] {
      decision.reason = Reason::Kernel;
      decision.key = keys.highestPriorityTypeId();
      return;
    }
    ++decision.kernels_crossed;
    switch (known->role) {
      case KnownKernel::Role::Autograd:
        if (needs_gradient(op, arguments)) {
          decision.reason = Reason::RequiresGrad;
          return;
        }
        decision.below_autograd = true;
        keys = keys & c10::after_autograd_keyset;
        break;
      case KnownKernel::Role::ADInplaceOrView:
        if (mutates_inference_tensor(op, arguments)) [[unlikely]] {
          decision.reason = Reason::InferenceMutation;
          return;
        }
        decision.bumps_versions = true;
        keys = keys & c10::after_ADInplaceOrView_keyset;
        break;
      case KnownKernel::Role::Backend:
        decision.backend = known->backend.get();
        decision.path = Path::Direct;
        decision.stale = decision.backend->function() == nullptr;
        return;
    }
  }
}

}  // namespace

Decision decide(Operator& op,
                const CallArguments& call,
                const torch_compat::LocalKeySets& local,
                BoundArguments& arguments) {
  Decision decision;
  if (op.unsupported() != nullptr) [[unlikely]] {
    decision.reason = Reason::Schema;
    return decision;
  }
  const c10::DispatchKeySet included = local.included();
  decision.reason = thread_reason(included);
  if (decision.reason != Reason::None) [[unlikely]] {
    decision.key = (included - torch_compat::kOrdinaryIncludedKeys).highestPriorityTypeId();
    return decision;
  }
  if (!arguments.bind(op.signature(), call)) [[unlikely]] {
    decision.reason = arguments.failure();
    decision.argument = arguments.failed_argument();
    decision.key = torch_compat::first_special_key(arguments.keys());
    return decision;
  }
  walk(op, torch_compat::call_key_set(op.entry(), arguments.keys(), included, local.excluded()), arguments, decision);
  return decision;
}

}  // namespace dutyfree::call
