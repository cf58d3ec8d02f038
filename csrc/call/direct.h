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
    // As increment_version of PyTorch's: a detached inference tensor has a counter, and is one of inference still.
    if (!tensor.is_inference()) {
      tensor.bump_version();
    }
    return false;
  });
}

[[gnu::always_inline]] inline PyRef call_function(const DecidedCall& call) {
  if (torch_compat::frame_evaluator_installed() && call.disables_dynamo) [[unlikely]] {
    const torch_compat::DynamoDisabled disabled;
    if (disabled.failed()) {
      return {};
    }
    return PyRef::steal(call.arguments.call(call.op.signature(), call.function.get()));
  }
  return PyRef::steal(call.arguments.call(call.op.signature(), call.function.get()));
}

template <typename Run>
[[gnu::always_inline]] inline PyRef run_guarded(const DecidedCall& call, Run run) {
  const torch_compat::BelowAutograd guard(call.thread,
                                          call.decision.below_autograd && !seeded(Fault::BodyNotBelowAutograd));
  return run();
}

// Bumps the versions of mutated arguments and runs the body, `run`, as PyTorch would run it. Null with a Python error
// set where it raises.
template <typename Run>
[[gnu::always_inline]] inline PyRef run_below_autograd(const DecidedCall& call, Run run) {
  if (call.decision.bumps_versions) {
    bump_versions(call.op, call.arguments);
  }
  PyRef result = run_guarded(call, run);
  if (!result && seeded(Fault::ExceptionKeepsKeys)) {
    call.thread.set_excluded(call.thread.excluded() | c10::autograd_dispatch_keyset);
  }
  return result;
}

// Settles a body's result, which PyTorch would send through `kernels_crossed` Python kernels. Null with a Python error
// set where PyTorch's checks raise.
[[gnu::always_inline]] inline PyRef settled(const DecidedCall& call, PyRef result, int kernels_crossed) {
  PyObject* judge = seeded(Fault::KernelUnheld) ? call.decision.backend->judge() : call.judge.get();
  return PyRef::steal(settle_result(call.op, call.arguments, std::move(result), judge, kernels_crossed));
}

// Runs a Python body and settles its result. The arguments are settled. Null with a Python error set where the body or
// PyTorch's checks raise.
[[gnu::always_inline]] inline PyRef run_python(const DecidedCall& call, int kernels_crossed) {
  PyRef result = run_below_autograd(call, [&] { return call_function(call); });
  return result ? settled(call, std::move(result), kernels_crossed) : PyRef();
}

// The same for any body.
[[gnu::always_inline]] inline PyRef run_body(const RunningCall& call, int kernels_crossed) {
  if (call.typed.call == nullptr) {
    return run_python(call, kernels_crossed);
  }
  PyRef result = run_below_autograd(call, [&] { return run_typed(call.typed, call.op.signature()); });
  if (!result || kernels_crossed == 0) {
    return result;  // made from C++ values: it is what the schema says
  }
  return settled(call, std::move(result), kernels_crossed);
}

}  // namespace dutyfree::call
