#pragma once

#include "call/running_call.h"

namespace dutyfree::call {

// The AUTOGRAD path: what custom_op's autograd wrapper does when an input requires grad, with the same objects, but
// without the Python around them. PyTorch's own `apply` makes the node, of a torch.autograd.Function that is the
// operator's own; its `forward` and the node's `apply` are the functions below.

// Makes the node and runs the body inside it. A new reference, or null with a Python error set.
PyObject* record_gradient(const RunningCall& call);

// Adds to the module the functions that _gradients.py puts into an operator's Function, and the type of the object that
// links a node's call to its `forward`.
bool add_autograd(PyObject* module);

}  // namespace dutyfree::call
