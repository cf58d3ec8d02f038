#pragma once

#include "call/arguments.h"
#include "call/operator.h"
#include "py_ref.h"
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

// The same, which for the usual result without an alias check is nothing to do.
[[gnu::always_inline]] inline PyObject* settle_result(const Operator& op,
                                                      const BoundArguments& arguments,
                                                      PyRef result,
                                                      PyObject* judge,
                                                      int kernels_crossed) {
  if (judge == nullptr && op.signature().returns_tensor() && torch_compat::is_plain_tensor(result.get())) [[likely]] {
    return result.release();
  }
  return settle_any_result(op, arguments, std::move(result), judge, kernels_crossed);
}

}  // namespace dutyfree::call
