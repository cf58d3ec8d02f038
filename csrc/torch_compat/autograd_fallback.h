#pragma once

#include "torch_compat/dispatch_table.h"

// PyTorch's autograd kernel for operators that have none of their own: it passes the call on and, where a gradient is
// due, sees to a warning in the backward pass.
namespace dutyfree::torch_compat {

// Null where it can't be found. A plain function, so its code is its identity.
KernelIdentity autograd_fallback();

// False where torch._C._set_autograd_fallback_mode made it a mere redispatch.
bool autograd_fallback_records();

}  // namespace dutyfree::torch_compat
