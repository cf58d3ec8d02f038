#pragma once

#include "call/typed_arguments.h"
#include "py_ref.h"

namespace dutyfree::call {

// A C++ body about to be called: its kernel's entry, copied because the kernel may go once others get to run, and the
// arguments. On the stack of the call.
struct TypedBody {
  TypedBody() = default;
  TypedBody(const DirectKernel& kernel, TypedArguments& arguments)
      : call(kernel.call),
        arguments(&arguments),
        tensor_results(kernel.tensor_results),
        releases_gil(kernel.releases_gil) {}

  DirectKernel::Call* call = nullptr;  // null: the body is Python
  TypedArguments* arguments = nullptr;
  int tensor_results = 0;
  bool releases_gil = false;
};

// Calls a C++ body, with or without the GIL as the kernel has it, and makes Python objects of its results. Null with a
// Python error set, PyTorch's own for the exception, where the body throws.
PyRef run_typed(const TypedBody& body, const Signature& signature);

}  // namespace dutyfree::call
