#pragma once

#include "dutyfree/direct_kernel.h"
#include "torch_compat/dispatch_table.h"

// Kernels that dutyfree/op.h put into a dispatch table.
namespace dutyfree::torch_compat {

// The kernel as its library made it, or null where another kind of kernel stands there. Valid as long as the kernel.
inline const DirectKernel* direct_kernel(const c10::KernelFunction& kernel) {
  return dynamic_cast<const DirectKernel*>(kernel_functor(boxed_kernel(kernel)));
}

// Keeps the shared library that made a kernel loaded for the life of the process: the kernel's destructor is part of
// it.
void keep_library_of(const DirectKernel& kernel);

}  // namespace dutyfree::torch_compat
