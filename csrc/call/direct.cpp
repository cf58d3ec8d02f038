#include "call/direct.h"

#include "call/results.h"
#include "torch_compat/eval_frame.h"

namespace dutyfree::call {
namespace {

PyRef run_body(const Operator& op,
               const Decision& decision,
               const torch_compat::ThreadState& thread,
               const BoundArguments& arguments,
               PyObject* function) {
  const torch_compat::BelowAutograd guard(thread, decision.below_autograd);
  if (torch_compat::frame_evaluator_installed()) [[unlikely]] {
    const torch_compat::DynamoDisabled disabled;
    if (disabled.failed()) {
      return {};
    }
    return PyRef::steal(arguments.call(op.signature(), function));
  }
  return PyRef::steal(arguments.call(op.signature(), function));
}

}  // namespace

PyObject* run_direct(Operator& op,
                     const Decision& decision,
                     const torch_compat::ThreadState& thread,
                     BoundArguments& arguments) {
  // Held, since the body may register another one or redefine the operator.
  const PyRef function = PyRef::borrow(decision.function);
  const PyRef judge = PyRef::borrow(decision.backend->judge());
  if (!arguments.settle_defaults(op.signature())) [[unlikely]] {
    return nullptr;
  }
  if (decision.bumps_versions) {
    arguments.any_tensor(op.signature(), op.signature().mutated_slots(), [](c10::TensorImpl& tensor) {
      tensor.bump_version();
      return false;
    });
  }
  PyRef result = run_body(op, decision, thread, arguments, function.get());
  if (!result) {
    return nullptr;
  }
  return settle_result(op, arguments, std::move(result), judge.get(), decision.kernels_crossed);
}

}  // namespace dutyfree::call
