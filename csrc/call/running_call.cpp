#include "call/running_call.h"

#include "call/autograd.h"
#include "call/direct.h"
#include "torch_compat/conversion.h"
#include "torch_compat/recorded_event.h"

namespace dutyfree::call {
namespace {

PyObject* run(const RunningCall& call) {
  return call.autograd == nullptr ? run_body(call, call.decision.kernels_crossed).release() : record_gradient(call);
}

// A profiler or another observer wants to know of this call.
[[gnu::cold]] PyObject* run_observed(const RunningCall& call, at::StepCallbacks callbacks) {
  const Operator& op = call.op;
  try {
    torch_compat::RecordedEvent event(std::move(callbacks), op.schema(), dispatch_keys(op, call.arguments, call.thread),
                                      [&] {
                                        std::vector<c10::IValue> inputs;
                                        inputs.reserve(op.signature().slots().size());
                                        for (std::size_t slot = 0; slot < op.signature().slots().size(); ++slot) {
                                          inputs.push_back(torch_compat::to_ivalue(op.schema().arguments()[slot],
                                                                                   call.arguments.value(slot)));
                                        }
                                        return inputs;
                                      });
    PyRef result = PyRef::steal(run(call));
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

PyObject* run_decided(const Operator& op,
                      const Decision& decision,
                      const torch_compat::ThreadState& thread,
                      BoundArguments& arguments) {
  const RunningCall call(op, decision, thread, arguments);
  if (!arguments.settle_defaults(op.signature())) [[unlikely]] {
    return nullptr;
  }
  auto callbacks = torch_compat::operator_callbacks();
  if (callbacks.has_value() && op.entry().isObserved()) [[unlikely]] {
    return run_observed(call, *std::move(callbacks));
  }
  return run(call);
}

}  // namespace dutyfree::call
