#pragma once

#include "call/arguments.h"
#include "call/operator.h"

namespace dutyfree::call {

// The BOXED path: the call that PyTorch's own binding makes (one box a value, then the whole dispatcher, with the GIL
// released), with the arguments bound by what is known of the schema.

// Boxes arguments that are placed. None where that worked; otherwise why PyTorch has to make the call or the error, and
// `argument` is the slot. No Python error is set.
[[gnu::noinline]] observe::Reason box(const Operator& op,
                                      const BoundArguments& arguments,
                                      torch::jit::Stack& stack,
                                      int& argument);

// Calls the dispatcher, which leaves what it likes on the stack. A new reference, or null with a Python error set.
[[gnu::noinline]] PyObject* run_boxed(const Operator& op, torch::jit::Stack& stack);

}  // namespace dutyfree::call
