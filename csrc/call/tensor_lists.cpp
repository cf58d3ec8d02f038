#include "call/tensor_lists.h"

#include <torch/csrc/autograd/python_variable.h>

namespace dutyfree::call {

bool is_tensor_list(PyObject* value, bool none_is_a_tensor) {
  if (!PyList_Check(value)) {
    return false;
  }
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(value); ++index) {
    PyObject* item = PyList_GET_ITEM(value, index);
    if (!THPVariable_Check(item) && !(none_is_a_tensor && item == Py_None)) {
      return false;
    }
  }
  return true;
}

Py_ssize_t TensorLists::flat_size() const {
  Py_ssize_t count = 0;
  for (const Py_ssize_t size : sizes_) {
    count += size == kValue ? 1 : size;
  }
  return count;
}

PyRef TensorLists::put_together(PyObject* const* flat) const {
  PyRef values = PyRef::steal(PyTuple_New(static_cast<Py_ssize_t>(sizes_.size())));
  if (!values) {
    return {};
  }
  for (std::size_t index = 0; index < sizes_.size(); ++index) {
    PyObject* value = nullptr;
    if (sizes_[index] == kValue) {
      value = Py_NewRef(*flat++);
    } else {
      value = PyList_New(sizes_[index]);
      if (value == nullptr) {
        return {};
      }
      for (Py_ssize_t item = 0; item < sizes_[index]; ++item) {
        PyList_SET_ITEM(value, item, Py_NewRef(*flat++));
      }
    }
    PyTuple_SET_ITEM(values.get(), static_cast<Py_ssize_t>(index), value);
  }
  return values;
}

PyRef TensorLists::take_apart(PyObject* values, Py_ssize_t extra) const {
  if (PyTuple_GET_SIZE(values) != static_cast<Py_ssize_t>(sizes_.size())) {
    return {};
  }
  const Py_ssize_t count = flat_size();
  PyRef flat = PyRef::steal(PyTuple_New(count + extra));
  if (!flat) {
    return {};
  }
  Py_ssize_t next = 0;
  const auto put = [&](PyObject* value) { PyTuple_SET_ITEM(flat.get(), next++, Py_NewRef(value)); };
  for (std::size_t index = 0; index < sizes_.size(); ++index) {
    PyObject* value = PyTuple_GET_ITEM(values, static_cast<Py_ssize_t>(index));
    if (sizes_[index] == kValue) {
      if (PyTuple_Check(value) || is_tensor_list(value, true)) {
        return {};
      }
      put(value);
      continue;
    }
    if (!PyList_CheckExact(value) || !is_tensor_list(value, true) || PyList_GET_SIZE(value) != sizes_[index]) {
      return {};
    }
    for (Py_ssize_t item = 0; item < sizes_[index]; ++item) {
      put(PyList_GET_ITEM(value, item));
    }
  }
  while (next < count + extra) {
    put(Py_None);
  }
  return flat;
}

PyRef TensorLists::as_tree_spec() const {
  const PyRef sizes = PyRef::steal(PyList_New(static_cast<Py_ssize_t>(sizes_.size())));
  for (std::size_t index = 0; sizes && index < sizes_.size(); ++index) {
    PyObject* size = PyLong_FromSsize_t(sizes_[index]);
    if (size == nullptr) {
      return {};
    }
    PyList_SET_ITEM(sizes.get(), static_cast<Py_ssize_t>(index), size);
  }
  const PyRef module = PyRef::steal(sizes ? PyImport_ImportModule("dutyfree._gradients") : nullptr);
  return module ? PyRef::steal(PyObject_CallMethod(module.get(), "tree_spec", "O", sizes.get())) : PyRef();
}

}  // namespace dutyfree::call
