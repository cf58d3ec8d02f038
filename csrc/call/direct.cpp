#include "call/direct.h"

#include "call/results.h"
#include "torch_compat/conversion.h"
#include "torch_compat/eval_frame.h"
#include "torch_compat/recorded_event.h"

namespace dutyfree::call {
namespace {

// What a call needs of its backend kernel, held from the decision on: whatever lets another thread or Python code in
// (an observer, the body) may register another kernel or redefine the operator, and the decision's pointers die with
// that.
struct Body {
  explicit Body(const Decision& decision)
      : function(PyRef::borrow(decision.function)), judge(PyRef::borrow(decision.backend->judge())) {}

  PyRef function;
  PyRef judge;
};

PyRef run_function(const Operator& op,
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

PyObject* run(const Operator& op,
              const Decision& decision,
              const torch_compat::ThreadState& thread,
              BoundArguments& arguments,
              const Body& body) {
  if (!arguments.settle_defaults(op.signature())) [[unlikely]] {
    return nullptr;
  }
  if (decision.bumps_versions) {
    arguments.any_tensor(op.signature(), op.signature().mutated_slots(), [](c10::TensorImpl& tensor) {
      tensor.bump_version();
      return false;
    });
  }
  PyRef result = run_function(op, decision, thread, arguments, body.function.get());
  if (!result) {
    return nullptr;
  }
  return settle_result(op, arguments, std::move(result), body.judge.get(), decision.kernels_crossed);
}

// A profiler or another observer wants to know of this call.
[[gnu::cold]] PyObject* run_observed(const Operator& op,
                                     const Decision& decision,
                                     const torch_compat::ThreadState& thread,
                                     BoundArguments& arguments,
                                     const Body& body,
                                     at::StepCallbacks callbacks) {
  try {
    torch_compat::RecordedEvent event(std::move(callbacks), op.schema(), dispatch_keys(op, arguments, thread), [&] {
      std::vector<c10::IValue> inputs;
      inputs.reserve(op.signature().slots().size());
      for (std::size_t slot = 0; slot < op.signature().slots().size(); ++slot) {
        inputs.push_back(torch_compat::to_ivalue(op.schema().arguments()[slot], arguments.value(slot)));
      }
      return inputs;
    });
    PyRef result = PyRef::steal(run(op, decision, thread, arguments, body));
    if (result && event.needs_outputs()) {
      event.set_outputs(torch_compat::to_ivalues(op.schema(), result.get()));
    }
    return result.release();
  } catch (...) {
    torch_compat::set_python_error();
    return nullptr;
  }
}

}  // namespace

PyObject* run_direct(const Operator& op,
                     const Decision& decision,
                     const torch_compat::ThreadState& thread,
                     BoundArguments& arguments) {
  const Body body(decision);
  auto callbacks = torch_compat::operator_callbacks();
  if (callbacks.has_value() && op.entry().isObserved()) [[unlikely]] {
    return run_observed(op, decision, thread, arguments, body, *std::move(callbacks));
  }
  return run(op, decision, thread, arguments, body);
}

}  // namespace dutyfree::call
