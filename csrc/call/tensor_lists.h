#pragma once

#include <c10/util/SmallVector.h>

#include "py_ref.h"

namespace dutyfree::call {

// torch.autograd.Function takes and returns single tensors. Where a schema has lists of tensors, PyTorch takes the
// lists apart before and puts them together after; a TensorLists says where they were. As PyTorch's own code for this
// (torch._library.autograd.supports_tensorlist), it takes a list apart if it holds nothing but tensors. Functions that
// return Python objects leave a Python error set where memory runs out. Belongs to a NodeCall; every member needs the
// GIL.
class TensorLists {
 public:
  // Appends an argument or a result. False with a Python error set where memory runs out.
  bool add(PyObject* value);

  // Whether the value of this index is a list that is taken apart.
  bool is_list(std::size_t index) const { return sizes_[index] != kValue; }
  // How many values there are once the lists are taken apart.
  Py_ssize_t flat_size() const;

  // The values with new lists in their places, as a tuple. `flat` holds flat_size() borrowed values.
  PyRef unflatten(PyObject* const* flat) const;
  // The flat values of the tuple `values`, of which this is the structure, and `extra` unless it is null, as a tuple.
  // Null with a Python error set where one of its lists has another length by now.
  PyRef flatten(PyObject* values, PyObject* extra = nullptr) const;
  // The same for the gradients that a backward function returned; a gradient may be None. Null without a Python error
  // where they have another structure, with one where looking at them raises.
  PyRef flatten_gradients(PyObject* gradients, PyObject* extra) const;
  // The structure as PyTorch would have it, for its own Python code.
  PyRef as_tree_spec() const;

 private:
  static constexpr Py_ssize_t kValue = -1;

  c10::SmallVector<Py_ssize_t, 8> sizes_;  // one for each value: a list's length, or kValue
};

}  // namespace dutyfree::call
