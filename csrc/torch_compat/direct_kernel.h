#pragma once

#include <set>
#include <string>

#include "dutyfree/direct_kernel.h"
#include "torch_compat/dispatch_table.h"

// Kernels that dutyfree/op.h put into a dispatch table.
namespace dutyfree::torch_compat {

// The kernel as its library made it, or null where another kind of kernel stands there. Valid as long as the kernel.
inline const DirectKernel* direct_kernel(const c10::KernelFunction& kernel) {
  return dynamic_cast<const DirectKernel*>(kernel_functor(boxed_kernel(kernel)));
}

// The shared library that has the code at an address, as the loader names it; empty where there is none.
std::string library_of(const void* code);
// The shared libraries that have the operator's direct kernels, the fallbacks' aside.
std::set<std::string> libraries_of(const c10::OperatorHandle& op);
// Keeps that library loaded for the life of the process: a kernel's destructor is part of it.
void keep_library(const void* code);

}  // namespace dutyfree::torch_compat
