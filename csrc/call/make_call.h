#pragma once

#include "call/arguments.h"
#include "call/autograd.h"
#include "call/boxed.h"
#include "call/direct.h"
#include "call/dispatch_walk.h"
#include "call/op_callable.h"
#include "torch_compat/recorded_event.h"

// One call, from what Python passed to the result: decided, then made. All of the direct path is inline in one function
// per kind of caller. A body that goes deep, as every PyTorch function does, makes the processor forget where each
// frame below it returns to, so a nested call costs 9 ns here that a look at its instructions does not show
// (docs/decisions.md).
namespace dutyfree::call {

[[gnu::always_inline]] inline PyObject* run(const RunningCall& call) {
  return call.autograd == nullptr ? run_body(call, call.decision.kernels_crossed).release() : record_gradient(call);
}

// The same for a profiler or another observer, which wants to know of this call.
[[gnu::cold]] PyObject* run_observed(const RunningCall& call, at::StepCallbacks callbacks);

// Makes the call that `decision` decided for: runs the body, for an Autograd call inside a new autograd node. Null with
// a Python error set where the body or PyTorch's checks raise. The arguments may be settled only once.
[[gnu::always_inline]] inline PyObject* run_decided(const Operator& op,
                                                    const Decision& decision,
                                                    const torch_compat::ThreadState& thread,
                                                    CallValues& values) {
  const RunningCall call(op, decision, thread, values);
  // C++ gets every argument, so that only Python needs to be told which ones the caller left to it.
  if ((call.typed.call == nullptr || call.autograd != nullptr) && !values.bound.settle_defaults(op.signature()))
      [[unlikely]] {
    return nullptr;
  }
  auto callbacks = torch_compat::operator_callbacks();
  if (callbacks.has_value() && op.entry().isObserved()) [[unlikely]] {
    return run_observed(call, *std::move(callbacks));
  }
  return run(call);
}

// The same for a Python body without a gradient to record, as most calls of Python operators are.
[[gnu::always_inline]] inline PyObject* run_python_decided(const Operator& op,
                                                           const Decision& decision,
                                                           const torch_compat::ThreadState& thread,
                                                           CallValues& values) {
  const DecidedCall call(op, decision, thread, values.bound);
  // After the call holds its kernels: making a list may run a finaliser, which may register others.
  if (!values.bound.settle_defaults(op.signature())) [[unlikely]] {
    return nullptr;
  }
  auto callbacks = torch_compat::operator_callbacks();
  if (callbacks.has_value() && op.entry().isObserved()) [[unlikely]] {
    return run_observed(RunningCall(op, decision, thread, values), *std::move(callbacks));
  }
  return run_python(call, decision.kernels_crossed).release();
}

// The same for a C++ body alone, which nothing but an observer can see or change while it runs.
[[gnu::always_inline]] inline PyObject* run_typed_decided(const Operator& op,
                                                          const Decision& decision,
                                                          const torch_compat::ThreadState& thread,
                                                          CallValues& values) {
  const TypedBody body(*decision.typed, values.typed);
  auto callbacks = torch_compat::operator_callbacks();
  if (callbacks.has_value() && op.entry().isObserved()) [[unlikely]] {
    return run_observed(RunningCall(op, decision, thread, values), *std::move(callbacks));
  }
  if (decision.bumps_versions) {
    bump_versions(op, values.bound);
  }
  const torch_compat::BelowAutograd guard(thread, decision.below_autograd && !seeded(Fault::BodyNotBelowAutograd));
  return run_typed(body, op.signature()).release();
}

enum class Outcome : std::uint8_t {
  Made,       // the call was made; `*result` is what came of it
  PyTorchs,   // PyTorch has to make it
  FitsNoWay,  // so has PyTorch, and it won't: the arguments don't fit the schema, whatever is converted
};

inline bool fits_no_way(const Decision& decision) {
  return decision.reason == observe::Reason::ArgumentCount || decision.reason == observe::Reason::ArgumentName ||
         decision.reason == observe::Reason::ArgumentMismatch;
}

// Decides and, where the call is ours to make, makes it.
[[gnu::always_inline]] inline Outcome try_operator(Operator& op, const CallArguments& call, PyObject** result) {
  const torch_compat::ThreadState& thread = torch_compat::ThreadState::here();
  for (;;) {
    CallValues values;
    const Decision decision = decide(op, call, thread, values);
    const bool runs_body = decision.path == observe::Path::Direct || decision.path == observe::Path::Autograd;
    if (runs_body && decision.function == nullptr && decision.typed == nullptr) [[unlikely]] {
      const auto backend = decision.backend->shared_from_this();
      if (!backend->refresh()) {
        *result = nullptr;
        return Outcome::Made;
      }
      continue;  // Python code ran: everything may be different
    }
    op.counters().count(decision.path, decision.reason);
    if (decision.typed != nullptr && decision.autograd == nullptr && decision.kernels_crossed == 0) {
      *result = run_typed_decided(op, decision, thread, values);
      return Outcome::Made;
    }
    if (runs_body) [[likely]] {
      *result = decision.typed == nullptr && decision.autograd == nullptr
                    ? run_python_decided(op, decision, thread, values)
                    : run_decided(op, decision, thread, values);
      return Outcome::Made;
    }
    if (decision.path == observe::Path::Boxed && values.boxed.has_value()) {
      *result = run_boxed(op, *values.boxed);
      return Outcome::Made;
    }
    return fits_no_way(decision) ? Outcome::FitsNoWay : Outcome::PyTorchs;
  }
}

// The later overloads of a packet, in PyTorch's order. One that may fit by a conversion ends the search: PyTorch would
// take it.
[[gnu::noinline]] Outcome try_later(const OpCallable& callable, const CallArguments& call, PyObject** result);

// Whether the call was made; `*result` is what came of it.
[[gnu::always_inline]] inline bool try_call(const OpCallable& callable, const CallArguments& call, PyObject** result) {
  Outcome outcome = try_operator(*callable.owner->op, call, result);
  if (outcome == Outcome::FitsNoWay && callable.later != nullptr) [[unlikely]] {
    outcome = try_later(callable, call, result);
  }
  return outcome == Outcome::Made;
}

// Calls it as vectorcall does.
[[gnu::always_inline]] inline PyObject* call_with_vector(PyObject* op_callable,
                                                         PyObject* const* args,
                                                         std::size_t nargsf,
                                                         PyObject* keywords) {
  auto* callable = reinterpret_cast<OpCallable*>(op_callable);
  if (callable->auditor != nullptr) [[unlikely]] {
    return PyObject_Vectorcall(callable->auditor, args, nargsf, keywords);
  }
  const CallArguments call{
      .values = args, .positional = static_cast<std::size_t>(PyVectorcall_NARGS(nargsf)), .keywords = keywords};
  PyObject* result = nullptr;
  if (try_call(*callable, call, &result)) [[likely]] {
    return result;
  }
  return PyObject_Vectorcall(callable->pytorch, args, nargsf, keywords);
}

// Calls it as tp_call does: positional arguments in a tuple, keywords in a dict or null.
[[gnu::always_inline]] inline PyObject* call_with_tuple(PyObject* op_callable, PyObject* args, PyObject* kwargs) {
  auto* callable = reinterpret_cast<OpCallable*>(op_callable);
  if (callable->auditor != nullptr) [[unlikely]] {
    return PyObject_Call(callable->auditor, args, kwargs);
  }
  const CallArguments call{.values = &PyTuple_GET_ITEM(args, 0),
                           .positional = static_cast<std::size_t>(PyTuple_GET_SIZE(args)),
                           .keyword_dict = kwargs};
  PyObject* result = nullptr;
  if (try_call(*callable, call, &result)) [[likely]] {
    return result;
  }
  return PyObject_Call(callable->pytorch, args, kwargs);
}

}  // namespace dutyfree::call
