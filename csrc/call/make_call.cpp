#include "call/make_call.h"

#include "torch_compat/conversion.h"

namespace dutyfree::call {

PyObject* run_observed(const RunningCall& call, at::StepCallbacks callbacks) {
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

Outcome try_later(const OpCallable& callable, const CallArguments& call, PyObject** result) {
  const PyRef operators = PyRef::borrow(callable.later);
  Outcome outcome = Outcome::FitsNoWay;
  for (Py_ssize_t index = 0; outcome == Outcome::FitsNoWay && index < PyTuple_GET_SIZE(operators.get()); ++index) {
    outcome =
        try_operator(*reinterpret_cast<OperatorObject*>(PyTuple_GET_ITEM(operators.get(), index))->op, call, result);
  }
  return outcome;
}

}  // namespace dutyfree::call
