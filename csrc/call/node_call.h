#pragma once

#include "call/running_call.h"
#include "call/tensor_lists.h"

namespace dutyfree::call {

// The last input of a node's Function: it leads `forward` to the call. PyTorch's own wrapper has a Metadata object
// there, which counts as an input in needs_input_grad and in PyTorch's errors, so this is one, too. A Python object;
// every member needs the GIL.
struct NodeCall {
  PyObject_HEAD
  const RunningCall* call;  // until `forward` takes it, null from then on
  PyObject* keywords;       // owned, as long: the keyword-only inputs for setup_context; null where the schema has none
  // For schemas with lists of tensors, whose node keeps this object for its backward.
  TensorLists inputs;
  TensorLists outputs;
  bool result_is_tuple;
};

// Under which name a node keeps its NodeCall: PyTorch's own. Interned, owned for the life of the process.
extern PyObject* metadata_name;

// A new NodeCall, or null with a Python error set.
PyRef make_node_call(const RunningCall& call);

// The NodeCall that `object` is, or null.
NodeCall* as_node_call(PyObject* object);

bool add_node_call_type(PyObject* module);

}  // namespace dutyfree::call
