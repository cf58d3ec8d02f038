#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "py_ref.h"

namespace dutyfree::call {

// custom_op's backend wrapper: it runs the function registered for one device type. The function is looked up on
// every call, in the dict and the set that CustomOpDef itself uses, so a later register_kernel or set_kernel_enabled
// counts at once. Owned by its KnownKernel; every member needs the GIL.
class BackendKernel {
 public:
  struct Parts {
    PyRef functions;         // CustomOpDef._backend_fns
    PyRef disabled;          // CustomOpDef._disabled_kernel
    PyRef device_type;       // this kernel's key in both
    PyRef default_function;  // what runs while the kernel is disabled
    PyRef unwrap;            // callable: an entry of `functions` -> the function that the user registered
    PyRef judge;             // callable: see judge()
  };
  explicit BackendKernel(Parts parts) : parts_(std::move(parts)) {}

  // The function that a call has to run now, borrowed. Null without a Python error when `refresh` has to come first.
  PyObject* function() const;
  // Takes the dict's present entry apart. Runs Python code. False with a Python error set on failure.
  bool refresh();

  // PyTorch's own backend wrapper, with the body already run: judge(result, args, kwargs) returns the result or
  // raises what PyTorch raises for it.
  PyObject* judge() const { return parts_.judge.get(); }

  int traverse(visitproc visit, void* arg) const;

 private:
  Parts parts_;
  PyRef entry_;     // the entry of `functions` that `function_` was taken from
  PyRef function_;  // the user's function
};

// A kernel that stands in a dispatch table and whose meaning is known.
struct KnownKernel {
  enum class Role : std::uint8_t {
    Autograd,         // custom_op's autograd wrapper: with no gradient to record, mask the autograd keys and go on
    ADInplaceOrView,  // custom_op's version bump of the mutated arguments, then on
    Backend,          // custom_op's backend wrapper: run the body
  };

  KnownKernel(Role role, c10::KernelFunction kernel, std::unique_ptr<BackendKernel> backend);

  Role role;
  const c10::OperatorKernel* identity;
  // Keeps the functor alive, so that no later kernel can have its address.
  c10::KernelFunction kernel;
  std::unique_ptr<BackendKernel> backend;  // for Role::Backend
};

// One operator's known kernels. A handful, so a linear search is the fastest. Guarded by the GIL.
class KnownKernels {
 public:
  void add(KnownKernel kernel) { kernels_.push_back(std::move(kernel)); }
  // Forgets them all; every call is PyTorch's from then on. The Python objects they held die here.
  void clear();

  KnownKernel* find(const c10::OperatorKernel* identity) {
    for (KnownKernel& kernel : kernels_) {
      if (kernel.identity == identity) {
        return &kernel;
      }
    }
    return nullptr;
  }

  int traverse(visitproc visit, void* arg) const;

 private:
  std::vector<KnownKernel> kernels_;
};

}  // namespace dutyfree::call
