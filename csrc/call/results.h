#pragma once

#include "call/arguments.h"
#include "call/operator.h"
#include "py_ref.h"
#include "seeded_fault.h"
#include "torch_compat/tensor.h"

namespace dutyfree::call {

// Turns what a body returned into what the caller gets: PyTorch's checks, conversions and errors, and custom_op's alias
// check where the body is one of its. `judge` is the backend kernel's (see BackendKernel::judge), `kernels_crossed` the
// number of Python kernels that PyTorch would have sent the result through. Null with a Python error set where PyTorch
// raises.
PyObject* settle_any_result(const Operator& op,
                            const BoundArguments& arguments,
                            PyRef result,
                            PyObject* judge,
                            int kernels_crossed);

// Whether a result shares its storage with no argument; false also where only PyTorch's own check can tell.
inline bool has_own_storage(const Operator& op, const BoundArguments& arguments, const c10::TensorImpl& result) {
  const c10::StorageImpl* storage = torch_compat::storage_identity(result);
  return storage != nullptr &&
         (seeded(Fault::InputAliasUnchecked) ||
          !arguments.any_tensor(op.signature(), op.signature().tensor_slots(), [storage](const c10::TensorImpl& input) {
            return torch_compat::storage_identity(input) == storage;
          }));
}

// The same as settle_any_result, with a short way for the usual results: one plain tensor that is no argument's alias,
// or None where the schema returns nothing.
[[gnu::always_inline]] inline PyObject* settle_result(const Operator& op,
                                                      const BoundArguments& arguments,
                                                      PyRef result,
                                                      PyObject* judge,
                                                      int kernels_crossed) {
  if (op.signature().returns_tensor() && torch_compat::is_plain_tensor(result.get()) &&
      (judge == nullptr || (!op.returns_mutated() &&
                            has_own_storage(op, arguments, *torch_compat::tensor_impl(result.get()))))) [[likely]] {
    return result.release();
  }
  if (result.get() == Py_None && op.signature().results().empty() && !op.returns_mutated()) {
    return result.release();
  }
  return settle_any_result(op, arguments, std::move(result), judge, kernels_crossed);
}

}  // namespace dutyfree::call
