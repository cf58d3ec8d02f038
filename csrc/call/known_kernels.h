#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "call/dict_watch.h"
#include "dutyfree/direct_kernel.h"
#include "py_ref.h"
#include "torch_compat/dispatch_table.h"

namespace dutyfree::call {

// A kernel that runs a Python body. There are two kinds. custom_op's backend wrapper runs the function registered for
// one device type, which is looked up on every call in the dict and the set that CustomOpDef itself uses, so a later
// register_kernel or set_kernel_enabled counts at once. A kernel of Library.impl is the function. Shared by its
// KnownKernel and by whoever refreshes it; every member needs the GIL.
class BackendKernel : public std::enable_shared_from_this<BackendKernel> {
 public:
  struct Parts {
    PyRef functions;         // CustomOpDef._backend_fns
    PyRef disabled;          // CustomOpDef._disabled_kernel
    PyRef device_type;       // the cell of the kernel's closure with its key in `functions`
    PyRef default_function;  // what runs while the kernel is disabled
    PyRef unwrap;            // callable: an entry of `functions` -> (the user's function, its key in `disabled`)
    PyRef judge;             // callable: see judge()
  };
  explicit BackendKernel(Parts parts) : parts_(std::move(parts)), functions_(parts_.functions.get()) {}
  // `disables_dynamo`: the function was registered to run with Dynamo turned off.
  BackendKernel(PyRef function, bool disables_dynamo)
      : functions_(nullptr), disables_dynamo_(disables_dynamo), function_(std::move(function)) {}

  // The function that a call has to run now, borrowed. Null without a Python error when `refresh` has to come first.
  PyObject* function() {
    if (!functions_.unchanged()) [[unlikely]] {
      return look_up();
    }
    if (PySet_GET_SIZE(parts_.disabled.get()) != 0) [[unlikely]] {
      return enabled_function();
    }
    return function_.get();
  }
  // Takes the dict's present entry apart. Runs Python code, which may forget this kernel: the caller shares it for as
  // long. False with a Python error set on failure.
  bool refresh();

  // PyTorch's own backend wrapper, with the body already run: judge(result, args, kwargs) returns the result or
  // raises what PyTorch raises for it. Null for a kernel of Library.impl, whose results nothing looks at.
  PyObject* judge() const { return parts_.judge.get(); }
  bool disables_dynamo() const { return disables_dynamo_; }

  int traverse(visitproc visit, void* arg) const;

 private:
  PyObject* device_type() const { return PyCell_GET(parts_.device_type.get()); }
  PyObject* look_up();
  PyObject* enabled_function() const;

  Parts parts_;
  DictWatch functions_;  // over parts_.functions; of nothing, hence never unchanged, for a kernel of Library.impl
  bool disables_dynamo_ = true;
  PyRef entry_;         // the entry of `functions` that `function_` was taken from
  PyRef function_;      // the user's function
  PyRef disabled_key_;  // its key in `disabled`
};

// custom_op's autograd wrapper, as far as it records a gradient. Shared by its KnownKernel and by the calls that are
// under way; every member needs the GIL.
struct AutogradKernel : std::enable_shared_from_this<AutogradKernel> {
  PyRef apply;       // torch's own apply, bound to the operator's torch.autograd.Function, whose `forward` is ours
  PyRef definition;  // the CustomOpDef; its _setup_context_fn is read when a call gets there
  bool flattens_lists = false;  // lists of tensors are taken apart for `apply`, since the schema has some

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(apply.get());
    Py_VISIT(definition.get());
    return 0;
  }
};

// A kernel that stands in a dispatch table and whose meaning is known.
struct KnownKernel {
  enum class Role : std::uint8_t {
    Autograd,         // custom_op's autograd wrapper: record a gradient where one is due, mask the autograd keys, go on
    ADInplaceOrView,  // custom_op's version bump of the mutated arguments, then on
    Backend,          // run the body
  };

  KnownKernel(Role role, c10::KernelFunction kernel);

  Role role;
  torch_compat::KernelIdentity identity;
  // Keeps the functor alive, so that no later kernel can have its address.
  c10::KernelFunction kernel;
  std::shared_ptr<AutogradKernel> autograd;  // for Role::Autograd; null where PyTorch has to record the gradients
  std::shared_ptr<BackendKernel> backend;    // for Role::Backend with a Python body
  // For a kernel of dutyfree/op.h, whose library stays loaded; as long-lived as `kernel`.
  const DirectKernel* direct = nullptr;

  int traverse(visitproc visit, void* arg) const;
};

// One operator's known kernels. A handful, so a linear search is the fastest. Guarded by the GIL.
class KnownKernels {
 public:
  void add(KnownKernel kernel) {
    takes_typed_ |= kernel.direct != nullptr;
    kernels_.push_back(std::make_unique<KnownKernel>(std::move(kernel)));
  }
  bool empty() const { return kernels_.empty(); }
  // Whether one is C++, so that calls bind their arguments as C++ values.
  bool takes_typed() const { return takes_typed_; }
  // Forgets them all; every call is PyTorch's from then on. The Python objects they held die here.
  void clear();
  // Changes whenever a kernel is forgotten; pointers into this object are good for as long as it stays the same.
  std::uint64_t generation() const { return generation_; }

  KnownKernel* find(torch_compat::KernelIdentity identity) const {
    for (const auto& kernel : kernels_) {
      if (kernel->identity == identity) {
        return kernel.get();
      }
    }
    return nullptr;
  }

  int traverse(visitproc visit, void* arg) const;

 private:
  std::vector<std::unique_ptr<KnownKernel>> kernels_;
  bool takes_typed_ = false;
  std::uint64_t generation_ = 0;
};

}  // namespace dutyfree::call
