#pragma once

#include "call/results.h"
#include "call/running_call.h"
#include "seeded_fault.h"
#include "torch_compat/eval_frame.h"

namespace dutyfree::call {

inline void bump_versions(const Operator& op, const BoundArguments& arguments) {
  if (seeded(Fault::VersionBumpSkipped)) {
    return;
  }
  arguments.any_tensor(op.signature(), op.signature().mutated_slots(), [](c10::TensorImpl& tensor) {
    tensor.bump_version();
    return false;
  });
}

[[gnu::always_inline]] inline PyRef run_function(const RunningCall& call) {
  const torch_compat::BelowAutograd guard(call.thread,
                                          call.decision.below_autograd && !seeded(Fault::BodyNotBelowAutograd));
  if (call.typed.call != nullptr) {
    return run_typed(call.typed, call.op.signature());
  }
  if (torch_compat::frame_evaluator_installed() && call.disables_dynamo) [[unlikely]] {
    const torch_compat::DynamoDisabled disabled;
    if (disabled.failed()) {
      return {};
    }
    return PyRef::steal(call.arguments.call(call.op.signature(), call.function.get()));
  }
  return PyRef::steal(call.arguments.call(call.op.signature(), call.function.get()));
}

// Bumps the versions of mutated arguments, runs the body as PyTorch would run it and settles its result, which PyTorch
// would send through `kernels_crossed` Python kernels. The arguments are settled. Null with a Python error set where
// the body or PyTorch's checks raise.
[[gnu::always_inline]] inline PyRef run_body(const RunningCall& call, int kernels_crossed) {
  if (call.decision.bumps_versions) {
    bump_versions(call.op, call.arguments);
  }
  PyRef result = run_function(call);
  if (!result) {
    if (seeded(Fault::ExceptionKeepsKeys)) {
      call.thread.set_excluded(call.thread.excluded() | c10::autograd_dispatch_keyset);
    }
    return {};
  }
  if (call.typed.call != nullptr && kernels_crossed == 0) {
    return result;  // made from C++ values: it is what the schema says
  }
  PyObject* judge = seeded(Fault::KernelUnheld) ? call.decision.backend->judge() : call.judge.get();
  return PyRef::steal(settle_result(call.op, call.arguments, std::move(result), judge, kernels_crossed));
}

}  // namespace dutyfree::call
