#include "call/tensor_lists.h"

#include "torch_compat/tensor.h"

namespace dutyfree::call {

namespace {

// Whether PyTorch takes this value, which a backward function returned, apart: a list of tensors and Nones. It may be
// any object, and `isinstance` may run its code: negative with a Python error set where that raises.
int is_gradient_list(PyObject* value) {
  if (!PyList_Check(value)) {
    return 0;
  }
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(value); ++index) {
    const PyRef item = PyRef::borrow(PyList_GET_ITEM(value, index));
    if (item.get() == Py_None || torch_compat::is_tensor(item.get())) {
      continue;
    }
    if (const int instance = PyObject_IsInstance(item.get(), THPVariableClass); instance <= 0) {
      return instance;
    }
  }
  return 1;
}

// Fills a new tuple from its start.
class FlatValues {
 public:
  explicit FlatValues(Py_ssize_t count) : tuple_(PyRef::steal(PyTuple_New(count))) {}

  explicit operator bool() const { return static_cast<bool>(tuple_); }
  void put(PyObject* value) { PyTuple_SET_ITEM(tuple_.get(), next_++, Py_NewRef(value)); }
  // Whether the list has as many items as it should.
  bool put_items(PyObject* list, Py_ssize_t size) {
    if (PyList_GET_SIZE(list) != size) {
      return false;
    }
    for (Py_ssize_t index = 0; index < size; ++index) {
      put(PyList_GET_ITEM(list, index));
    }
    return true;
  }
  PyRef take() { return std::move(tuple_); }

 private:
  PyRef tuple_;
  Py_ssize_t next_ = 0;
};

// Whether PyTorch takes this argument or result apart.
bool is_tensor_list(PyObject* value) {
  if (!PyList_CheckExact(value)) {
    return false;
  }
  for (Py_ssize_t index = 0; index < PyList_GET_SIZE(value); ++index) {
    if (!torch_compat::is_tensor(PyList_GET_ITEM(value, index))) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool TensorLists::add(PyObject* value) {
  try {
    sizes_.push_back(is_tensor_list(value) ? PyList_GET_SIZE(value) : kValue);
    return true;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return false;
  }
}

Py_ssize_t TensorLists::flat_size() const {
  Py_ssize_t count = 0;
  for (const Py_ssize_t size : sizes_) {
    count += size == kValue ? 1 : size;
  }
  return count;
}

PyRef TensorLists::unflatten(PyObject* const* flat) const {
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

PyRef TensorLists::flatten(PyObject* values, PyObject* extra) const {
  FlatValues flat(flat_size() + (extra == nullptr ? 0 : 1));
  for (std::size_t index = 0; flat && index < sizes_.size(); ++index) {
    PyObject* value = PyTuple_GET_ITEM(values, static_cast<Py_ssize_t>(index));
    if (sizes_[index] == kValue) {
      flat.put(value);
    } else if (!flat.put_items(value, sizes_[index])) {
      PyErr_SetString(PyExc_RuntimeError, "a list of tensors changed its length while its gradient was recorded");
      return {};
    }
  }
  if (flat && extra != nullptr) {
    flat.put(extra);
  }
  return flat.take();
}

PyRef TensorLists::flatten_gradients(PyObject* gradients, PyObject* extra) const {
  if (PyTuple_GET_SIZE(gradients) != static_cast<Py_ssize_t>(sizes_.size())) {
    return {};
  }
  FlatValues flat(flat_size() + 1);
  for (std::size_t index = 0; flat && index < sizes_.size(); ++index) {
    PyObject* value = PyTuple_GET_ITEM(gradients, static_cast<Py_ssize_t>(index));
    const int list = is_gradient_list(value);
    if (list < 0) {
      return {};
    }
    if (sizes_[index] == kValue) {
      if (list > 0 || PyTuple_Check(value)) {
        return {};
      }
      flat.put(value);
      continue;
    }
    if (list == 0 || !PyList_CheckExact(value) || !flat.put_items(value, sizes_[index])) {
      return {};
    }
  }
  if (flat) {
    flat.put(extra);
  }
  return flat.take();
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
