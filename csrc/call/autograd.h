#pragma once

#include "call/running_call.h"

namespace dutyfree::call {

// The AUTOGRAD path: what custom_op's autograd wrapper does when an input requires grad, with the same objects, but
// without the Python around them. PyTorch's own `apply` makes the node, of a torch.autograd.Function that is the
// operator's own; its `forward` is here, the node's `apply` in backward.cpp.

// Makes the node and runs the body inside it. A new reference, or null with a Python error set.
PyObject* record_gradient(const RunningCall& call);

// Adds the Function's `forward` to the module.
bool add_forward(PyObject* module);

}  // namespace dutyfree::call
