#pragma once

#include "call/running_call.h"

namespace dutyfree::call {

// Bumps the versions of mutated arguments, runs the body as PyTorch would run it and settles its result, which PyTorch
// would send through `kernels_crossed` Python kernels. The arguments are settled. Null with a Python error set where
// the body or PyTorch's checks raise.
PyRef run_body(const RunningCall& call, int kernels_crossed);

}  // namespace dutyfree::call
