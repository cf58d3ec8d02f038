#pragma once

#include "call/arguments.h"
#include "call/dispatch_walk.h"
#include "call/operator.h"
#include "call/typed_body.h"
#include "py_ref.h"

namespace dutyfree::call {

// A decided call while it is made, on the stack of its thread: all that a Python body takes. It holds what the call
// needs of its kernels from the decision on: whatever lets another thread or Python code in (an observer, the body) may
// register another kernel or redefine the operator, and the decision's pointers die with that.
struct DecidedCall {
  [[gnu::always_inline]] DecidedCall(const Operator& op,
                                     const Decision& decision,
                                     const torch_compat::ThreadState& thread,
                                     BoundArguments& arguments)
      : op(op),
        decision(decision),
        thread(thread),
        arguments(arguments),
        function(PyRef::borrow(decision.function)),
        judge(PyRef::borrow(decision.backend == nullptr ? nullptr : decision.backend->judge())),
        disables_dynamo(decision.backend != nullptr && decision.backend->disables_dynamo()) {}
  DecidedCall(const DecidedCall&) = delete;
  DecidedCall& operator=(const DecidedCall&) = delete;
  [[gnu::always_inline]] ~DecidedCall() = default;

  const Operator& op;
  const Decision& decision;
  const torch_compat::ThreadState& thread;
  BoundArguments& arguments;
  const PyRef function;        // null where a C++ body runs
  const PyRef judge;           // see BackendKernel::judge
  const bool disables_dynamo;  // the body runs with Dynamo turned off
};

// The same with what C++ bodies and gradients take.
struct RunningCall : DecidedCall {
  [[gnu::always_inline]] RunningCall(const Operator& op,
                                     const Decision& decision,
                                     const torch_compat::ThreadState& thread,
                                     CallValues& values)
      : DecidedCall(op, decision, thread, values.bound),
        typed(decision.typed == nullptr ? TypedBody() : TypedBody(*decision.typed, values.typed)),
        autograd(decision.autograd == nullptr ? nullptr : decision.autograd->shared_from_this()) {}

  const TypedBody typed;                           // a C++ body
  const std::shared_ptr<AutogradKernel> autograd;  // of an Autograd call
};

}  // namespace dutyfree::call
