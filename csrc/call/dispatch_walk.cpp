#include "call/dispatch_walk.h"

#include <algorithm>

#include "call/apply_watch.h"
#include "call/boxed.h"
#include "seeded_fault.h"
#include "torch_compat/autograd_fallback.h"
#include "torch_compat/dispatch_table.h"
#include "torch_compat/tensor.h"

namespace dutyfree::call {
namespace {

using observe::Path;
using observe::Reason;

// The thread's own reasons to leave the direct path.
Reason thread_reason(const torch_compat::ThreadState& thread, c10::DispatchKeySet included) {
  if (!(included - torch_compat::kOrdinaryIncludedKeys).empty()) [[unlikely]] {
    return thread.torch_dispatch_active() ? Reason::DispatchMode : Reason::ThreadState;
  }
  if (thread.torch_function_active() && !seeded(Fault::FunctionModeIgnored)) [[unlikely]] {
    return Reason::TorchFunctionMode;
  }
  if (thread.torch_dispatch_active()) [[unlikely]] {
    return Reason::DispatchMode;
  }
  return Reason::None;
}

bool any_requires_grad(const Operator& op, const BoundArguments& arguments) {
  return arguments.any_tensor(op.signature(), op.signature().tensor_slots(),
                              [](const c10::TensorImpl& tensor) { return torch_compat::requires_grad(tensor); });
}

// Whether custom_op records a gradient for this value: not for a list in which one tensor is missing.
bool asks_for_gradient(PyObject* value, bool list) {
  if (value == nullptr || value == Py_None) {
    return false;
  }
  if (!list) {
    return torch_compat::requires_grad(*torch_compat::tensor_impl(value));
  }
  // A tuple where a C++ kernel takes it as it is.
  PyObject** items = PySequence_Fast_ITEMS(value);
  bool asks = false;
  for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(value); ++index) {
    PyObject* item = items[index];
    if (item == Py_None) {
      return false;
    }
    asks |= torch_compat::requires_grad(*torch_compat::tensor_impl(item));
  }
  return asks;
}

bool records_gradient(const Operator& op, const BoundArguments& arguments) {
  const Signature& signature = op.signature();
  return std::any_of(signature.gradient_slots().begin(), signature.gradient_slots().end(), [&](std::uint8_t slot) {
    return asks_for_gradient(arguments.value(slot), signature.slots()[slot].type.list);
  });
}

// None where there is no gradient to record, RequiresGrad where the core records it, else why PyTorch has to.
Reason gradient_reason(const Operator& op, const BoundArguments& arguments, const Route& route) {
  if (route.crosses_fallback) {
    return any_requires_grad(op, arguments) && torch_compat::autograd_fallback_records() ? Reason::RequiresGrad
                                                                                         : Reason::None;
  }
  // PyTorch refuses a gradient through an out= argument, wherever it is.
  if (op.returns_out() && any_requires_grad(op, arguments)) [[unlikely]] {
    return Reason::OutGradient;
  }
  if (route.typed_autograd != nullptr) {
    return any_requires_grad(op, arguments) ? Reason::RequiresGrad : Reason::None;
  }
  if (!records_gradient(op, arguments)) {
    return Reason::None;
  }
  if (route.autograd == nullptr || op.signature().results_may_nest()) [[unlikely]] {
    return Reason::GradientForm;
  }
  return function_apply_stands() ? Reason::RequiresGrad : Reason::PatchedApply;
}

// Whether an argument has a tangent, as dual tensors of forward mode have without requiring a gradient.
bool any_has_tangent(const Operator& op, const BoundArguments& arguments) {
  return arguments.any_tensor(op.signature(), op.signature().tensor_slots(),
                              [](c10::TensorImpl& tensor) { return torch_compat::has_tangent(tensor); });
}

bool mutates_inference_tensor(const Operator& op, const BoundArguments& arguments) {
  return arguments.any_tensor(op.signature(), op.signature().mutated_slots(),
                              [](const c10::TensorImpl& tensor) { return !torch_compat::has_version_counter(tensor); });
}

// A library that was loaded later may have brought a C++ kernel. This call has bound its arguments, so where that is
// the operator's first such kernel, it serves the next one.
const KnownKernel* find_or_know(Operator& op, int index, torch_compat::KernelIdentity identity) {
  if (const KnownKernel* known = op.kernels().find(identity); known != nullptr) {
    return known;
  }
  const bool typed = op.kernels().takes_typed();
  op.know_if_direct(torch_compat::kernel_at(op.entry(), index));
  return typed ? op.kernels().find(identity) : nullptr;
}

// From the kernel that the dispatcher would call first down to the body, as far as known kernels go. Where that is not
// all the way, `decision` says which key has another kernel.
void lay_route(Operator& op, c10::DispatchKeySet keys, Route& route, Decision& decision) {
  route.start(keys, op.kernels().generation());
  for (;;) {
    const int index = torch_compat::table_index(keys);
    const torch_compat::KernelIdentity identity = index < 0 ? nullptr : torch_compat::identity_at(op.entry(), index);
    if (identity != nullptr && identity == torch_compat::autograd_fallback() && !route.crosses_fallback) {
      route.add({index, identity});
      route.crosses_fallback = true;
      keys = keys & c10::after_autograd_keyset;
      continue;
    }
    const KnownKernel* known = identity == nullptr ? nullptr : find_or_know(op, index, identity);
    if (known == nullptr) {
      decision.reason = Reason::Kernel;
      decision.key = keys.highestPriorityTypeId();
      return;
    }
    route.add({index, identity});
    route.python_kernels += known->direct == nullptr ? 1 : 0;
    switch (known->role) {
      case KnownKernel::Role::Autograd:
        route.below_autograd = true;
        route.autograd = known->autograd.get();
        route.typed_autograd = known->direct;
        keys = keys & c10::after_autograd_keyset;
        break;
      case KnownKernel::Role::ADInplaceOrView:
        route.bumps_versions = true;
        keys = keys & c10::after_ADInplaceOrView_keyset;
        break;
      case KnownKernel::Role::Backend:
        route.backend = known->backend.get();
        route.typed_body = known->direct;
        route.complete = true;
        return;
    }
  }
}

[[gnu::always_inline]] inline void walk(Operator& op,
                                        c10::DispatchKeySet keys,
                                        const torch_compat::ThreadState& thread,
                                        const BoundArguments& arguments,
                                        Decision& decision) {
  Route& route = op.route();
  if (!route.serves(keys, op.kernels().generation()) || !route.stands(op.entry())) [[unlikely]] {
    lay_route(op, keys, route, decision);
    if (!route.complete) {
      return;
    }
  }
  if (route.typed_autograd != nullptr && arguments.may_require_grad() && any_has_tangent(op, arguments)) [[unlikely]] {
    // With or without a gradient: the function says what becomes of tangents, as a rule that it has no way for them.
    decision.path = Path::Autograd;
    decision.reason = Reason::RequiresGrad;
    decision.typed = route.typed_autograd;
    return;
  }
  if (arguments.may_require_grad() && (route.below_autograd || route.crosses_fallback) && thread.grad_mode()) {
    decision.reason = gradient_reason(op, arguments, route);
    if (decision.reason == Reason::RequiresGrad && route.autograd != nullptr) {
      decision.autograd = route.autograd;
    } else if (decision.reason == Reason::RequiresGrad && route.typed_autograd != nullptr) {
      // It is a function of its own, which calls the operator anew: the rest of the way is that call's.
      decision.path = Path::Autograd;
      decision.typed = route.typed_autograd;
      return;
    } else if (decision.reason != Reason::None) [[unlikely]] {
      return;
    }
  }
  if (route.bumps_versions && !thread.inference_mode() && mutates_inference_tensor(op, arguments)) [[unlikely]] {
    if (!seeded(Fault::InferenceMutationAllowed)) {
      decision.reason = Reason::InferenceMutation;
      return;
    }
  }
  decision.path = decision.autograd != nullptr ? Path::Autograd : Path::Direct;
  decision.below_autograd = route.below_autograd;
  decision.bumps_versions =
      route.bumps_versions && !(seeded(Fault::InferenceMutationAllowed) && mutates_inference_tensor(op, arguments));
  decision.kernels_crossed = route.python_kernels;
  decision.typed = route.typed_body;
  if (route.typed_body == nullptr) {
    decision.backend = route.backend;
    decision.function = route.backend->function();
  }
}

// PyTorch's, because of an argument.
[[gnu::cold]] void leave(const BoundArguments& arguments, Decision& decision) {
  decision.reason = arguments.failure();
  decision.argument = arguments.failed_argument();
  decision.key = arguments.special_key();
}

// Of an operator with C++ kernels, this call runs Python, which sees values as PyTorch would pass them on.
[[gnu::cold]] void decide_for_python(Operator& op,
                                     const torch_compat::ThreadState& thread,
                                     BoundArguments& arguments,
                                     Decision& decision) {
  decision = {};
  if (op.unsupported() != nullptr) {
    decision.reason = Reason::Schema;
  } else if (!arguments.check(op.signature())) {
    leave(arguments, decision);
  } else {
    // Making lists may have run finalisers, which may have changed anything.
    walk(op, dispatch_keys(op, arguments, thread), thread, arguments, decision);
  }
}

void decide_direct(Operator& op,
                   const CallArguments& call,
                   const torch_compat::ThreadState& thread,
                   CallValues& values,
                   Decision& decision) {
  const bool typed = op.kernels().takes_typed();
  if (op.unsupported() != nullptr && !typed) [[unlikely]] {
    decision.reason = Reason::Schema;
    return;
  }
  const c10::DispatchKeySet included =
      seeded(Fault::IncludedKeyIgnored) ? c10::default_included_set : thread.included();
  decision.reason = thread_reason(thread, included);
  if (decision.reason != Reason::None) [[unlikely]] {
    decision.key = (included - torch_compat::kOrdinaryIncludedKeys).highestPriorityTypeId();
    return;
  }
  BoundArguments& arguments = values.bound;
  if (!(typed ? arguments.place(op.signature(), call) && values.typed.convert(op.signature(), arguments)
              : arguments.bind(op.signature(), call))) [[unlikely]] {
    leave(arguments, decision);
    return;
  }
  walk(op, dispatch_keys(op, arguments, thread), thread, arguments, decision);
  if (typed && (decision.function != nullptr || decision.autograd != nullptr)) [[unlikely]] {
    decide_for_python(op, thread, arguments, decision);
  }
}

// The reason why the call is not direct stays where it can be boxed.
void decide_boxed(const Operator& op,
                  const CallArguments& call,
                  const torch_compat::ThreadState& thread,
                  CallValues& values,
                  Decision& decision) {
  Reason refusal = Reason::None;
  int argument = -1;
  if (op.lost()) [[unlikely]] {
    refusal = Reason::Redefined;
  } else if (thread.torch_function_active()) [[unlikely]] {
    refusal = Reason::TorchFunctionMode;
  } else if (values.bound.placed() ||
             (values.bound.failure() == Reason::None && values.bound.place(op.signature(), call))) {
    refusal = box(op, values.bound, values.boxed.emplace(), argument);
  } else {
    refusal = values.bound.failure();
    argument = values.bound.failed_argument();
  }
  if (refusal == Reason::None) [[likely]] {
    decision.path = Path::Boxed;
    return;
  }
  decision.reason = refusal;
  decision.argument = argument;
}

}  // namespace

Decision decide_by_kernels(Operator& op, c10::DispatchKey backend) {
  Decision decision;
  c10::DispatchKeySet keys;
  if (backend != c10::DispatchKey::Undefined) {
    keys = c10::DispatchKeySet({backend, c10::DispatchKey::ADInplaceOrView,
                                c10::getAutogradKeyFromBackend(c10::toBackendComponent(backend))});
  }
  Route route;
  lay_route(op, torch_compat::call_key_set(op.entry(), keys, {}, {}), route, decision);
  decision.path = route.complete ? Path::Direct : Path::PyTorch;
  return decision;
}

Decision decide(Operator& op, const CallArguments& call, const torch_compat::ThreadState& thread, CallValues& values) {
  Decision decision;
  if (!op.kernels().empty() || !op.may_box()) {
    decide_direct(op, call, thread, values, decision);
  } else {
    decision.reason = Reason::CppKernel;
  }
  if (decision.path == Path::PyTorch && op.may_box()) {
    decide_boxed(op, call, thread, values, decision);
  }
  return decision;
}

}  // namespace dutyfree::call
