#pragma once

#include <c10/core/DispatchKey.h>

#include "call/arguments.h"
#include "call/operator.h"
#include "call/typed_arguments.h"
#include "observe/reason.h"
#include "seeded_fault.h"
#include "torch_compat/dispatch_table.h"
#include "torch_compat/thread_state.h"

namespace dutyfree::call {

// What one call has to do. Made anew for every call.
struct Decision {
  observe::Path path = observe::Path::PyTorch;
  observe::Reason reason = observe::Reason::None;
  int argument = -1;                                   // the slot that decided, where one did
  c10::DispatchKey key = c10::DispatchKey::Undefined;  // the dispatch key that decided, where one did
  AutogradKernel* autograd = nullptr;                  // of an Autograd call; valid until Python code runs
  BackendKernel* backend = nullptr;                    // of a Python body; valid until Python code runs
  const DirectKernel* typed = nullptr;                 // the C++ function to run instead; valid as long
  PyObject* function = nullptr;                        // the body, borrowed from `backend`; null: refresh it first
  bool below_autograd = false;                         // the body runs with the autograd keys excluded
  bool bumps_versions = false;                         // mutated arguments get a new version first
  int kernels_crossed = 0;                             // Python kernels that PyTorch would send the result through
};

// A call's arguments in the form that its path needs: bound in any case, on the stack for a Boxed call.
struct CallValues {
  CallValues() = default;
  CallValues(const CallValues&) = delete;
  CallValues& operator=(const CallValues&) = delete;
  [[gnu::always_inline]] ~CallValues() = default;

  BoundArguments bound;
  TypedArguments typed;                    // for a C++ body
  std::optional<torch::jit::Stack> boxed;  // of a Boxed call
};

// Binds the arguments and decides how this call goes: the thread's state, the call's key set, then PyTorch's own walk
// down the operator's dispatch table for as long as the kernels on the way are known ones. Where that does not lead to
// a body, boxes the arguments if the operator may be called so. Has no effect that a user can see.
Decision decide(Operator& op, const CallArguments& call, const torch_compat::ThreadState& thread, CallValues& values);

// How a call with plain tensors of one backend would go, as far as the kernels decide: Direct or, with the key whose
// kernel is not known, PyTorch. `backend` is Undefined for calls without tensors.
Decision decide_by_kernels(Operator& op, c10::DispatchKey backend);

// The key set that the dispatcher would compute for this call.
inline c10::DispatchKeySet dispatch_keys(const Operator& op,
                                         const BoundArguments& arguments,
                                         const torch_compat::ThreadState& thread) {
  const auto included = seeded(Fault::IncludedKeyIgnored) ? c10::default_included_set : thread.included();
  const auto excluded = seeded(Fault::ExcludedKeyIgnored) ? c10::default_excluded_set : thread.excluded();
  return torch_compat::call_key_set(op.entry(), arguments.keys(), included, excluded);
}

}  // namespace dutyfree::call
