#pragma once

#include "call/arguments.h"
#include "call/dispatch_walk.h"
#include "call/operator.h"

namespace dutyfree::call {

// The direct path: tell observers, bump the versions of mutated arguments, run the body below autograd, settle its
// result. A new reference, or null with a Python error set.
PyObject* run_direct(const Operator& op,
                     const Decision& decision,
                     const torch_compat::ThreadState& thread,
                     BoundArguments& arguments);

}  // namespace dutyfree::call
