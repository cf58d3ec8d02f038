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
  // False with a Python error set where memory runs out.
  bool add_value() { return add(kValue); }
  bool add_list(Py_ssize_t size) { return add(size); }

  std::size_t size() const { return sizes_.size(); }
  // A list's length, or kValue.
  Py_ssize_t size_of(std::size_t index) const { return sizes_[index]; }
  // How many values there are once the lists are taken apart.
  Py_ssize_t flat_size() const;

  // The values with new lists in their places, as a tuple. `flat` holds flat_size() borrowed values.
  PyRef unflatten(PyObject* const* flat) const;
  // The flat values of the tuple `result`, of which this is the structure, as a tuple. Null with a Python error set
  // where one of its lists has another length by now.
  PyRef flatten(PyObject* result) const;
  // The same for the gradients that a backward function returned and `extra` times None; a gradient may be None. Null
  // without a Python error where they have another structure, with one where looking at them raises.
  PyRef flatten_gradients(PyObject* gradients, Py_ssize_t extra) const;
  // The structure as PyTorch would have it, for its own Python code.
  PyRef as_tree_spec() const;

  static constexpr Py_ssize_t kValue = -1;

 private:
  bool add(Py_ssize_t size) {
    try {
      sizes_.push_back(size);
      return true;
    } catch (const std::bad_alloc&) {
      PyErr_NoMemory();
      return false;
    }
  }

  c10::SmallVector<Py_ssize_t, 8> sizes_;  // one for each value: a list's length, or kValue
};

// Whether PyTorch takes this value, which it made itself, apart: a list that holds nothing but tensors.
bool is_tensor_list(PyObject* value);

}  // namespace dutyfree::call
