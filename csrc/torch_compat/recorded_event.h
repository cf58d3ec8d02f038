#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKeySet.h>

#include <optional>
#include <vector>

// The event of one operator call that profilers and observers see, as c10::Dispatcher::callBoxed makes it.
namespace dutyfree::torch_compat {

// The callbacks to run for the operator call that is about to happen, if any. Asking counts as that call for sampling
// callbacks, so this is asked once a call, and only for a call that PyTorch's dispatcher will not see.
inline std::optional<at::StepCallbacks> operator_callbacks() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
}

// Starts when it is made and ends when it dies, on one thread. Callbacks run without the GIL, as they do in PyTorch's
// own calls: they may wait for a thread that needs it.
class RecordedEvent {
 public:
  // `schema` must outlive the event. `inputs` is called for the arguments if a callback wants them.
  template <typename Inputs>
  RecordedEvent(at::StepCallbacks&& callbacks,
                const c10::FunctionSchema& schema,
                c10::DispatchKeySet keys,
                Inputs inputs)
      : function_(std::move(callbacks)) {
    if (function_.needsInputs()) {
      inputs_ = inputs();
    }
    start(schema, keys);
  }
  ~RecordedEvent();
  RecordedEvent(const RecordedEvent&) = delete;
  RecordedEvent& operator=(const RecordedEvent&) = delete;

  bool needs_outputs() const { return function_.needsOutputs(); }
  void set_outputs(std::vector<c10::IValue> outputs) { function_.setOutputs(std::move(outputs)); }

 private:
  void start(const c10::FunctionSchema& schema, c10::DispatchKeySet keys);

  std::vector<c10::IValue> inputs_;
  at::RecordFunction function_;
};

}  // namespace dutyfree::torch_compat
