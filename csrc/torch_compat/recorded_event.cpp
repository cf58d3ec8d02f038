#include "torch_compat/recorded_event.h"

#include <Python.h>

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>

#include <functional>

namespace dutyfree::torch_compat {
namespace {

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace

void RecordedEvent::start(const c10::FunctionSchema& schema, c10::DispatchKeySet keys) {
  // The number ties a forward call to the autograd node that it makes; the dispatcher hands it out for every call that
  // autograd would see.
  const bool numbered = !(keys & c10::autograd_dispatch_keyset).empty() && c10::GradMode::is_enabled();
  const std::int64_t number = numbered ? static_cast<std::int64_t>(at::sequence_number::peek()) : -1;
  const WithoutGil released;
  function_.before(std::cref(schema), c10::ArrayRef<const c10::IValue>(inputs_.data(), inputs_.size()), number);
}

RecordedEvent::~RecordedEvent() {
  // The body's exception, if any, is this thread's own state and survives.
  const WithoutGil released;
  function_.end();
}

}  // namespace dutyfree::torch_compat
