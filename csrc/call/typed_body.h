#pragma once

#include "call/running_call.h"

namespace dutyfree::call {

// Calls a C++ body by its direct entry, with or without the GIL as the kernel has it, and makes Python objects of its
// results. Null with a Python error set, PyTorch's own for the exception, where the body throws.
PyRef run_typed(const RunningCall& call);

}  // namespace dutyfree::call
