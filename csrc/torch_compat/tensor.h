#pragma once

#include <torch/csrc/autograd/python_variable.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

// What a call needs to know of a tensor, without a reference count or a Python attribute.
namespace dutyfree::torch_compat {

// torch.Tensor and torch.nn.Parameter themselves: no subclass, hence no __torch_function__ and no __torch_dispatch__.
inline bool is_exact_tensor(PyObject* object) { return THPVariable_CheckExact(object); }

// Any tensor by its type; no Python code runs. (THPVariable_Check asks `isinstance`, which may, and throws where that
// fails.)
inline bool is_tensor(PyObject* object) {
  return is_exact_tensor(object) ||
         PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

inline c10::TensorImpl* tensor_impl(PyObject* exact_tensor) {
  return THPVariable_Unpack(exact_tensor).unsafeGetTensorImpl();
}

// The keys of an ordinary dense tensor on any backend. A tensor with another key (sparse, quantized, conjugated,
// negated, named, nested, functional, a Python subclass, …) is PyTorch's.
inline constexpr c10::DispatchKeySet kPlainTensorKeys =
    c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::ADInplaceOrView,
                         c10::DispatchKey::AutogradFunctionality, c10::DispatchKey::AutogradOther}) |
    c10::autocast_dispatch_keyset | c10::DispatchKeySet(c10::DispatchKeySet::RAW, c10::full_backend_mask);

inline bool has_plain_keys(c10::DispatchKeySet keys) {
  // On the raw bits: subtracting key sets never removes a backend's.
  return (keys.raw_repr() & ~kPlainTensorKeys.raw_repr()) == 0;
}

inline bool is_plain_tensor(PyObject* object) {
  return is_exact_tensor(object) && has_plain_keys(tensor_impl(object)->key_set());
}

// The key that makes a tensor not plain, by the dispatcher's order; Undefined where none does.
inline c10::DispatchKey first_special_key(c10::DispatchKeySet keys) {
  return has_plain_keys(keys) ? c10::DispatchKey::Undefined : (keys - kPlainTensorKeys).highestPriorityTypeId();
}

// The tensor's autograd state: null for the many tensors that have none.
const c10::AutogradMetaInterface* autograd_meta(const c10::TensorImpl& tensor);
template <auto Member>
struct AutogradMetaAccess {
  friend const c10::AutogradMetaInterface* autograd_meta(const c10::TensorImpl& tensor) {
    return (tensor.*Member).get();
  }
};
template struct AutogradMetaAccess<&c10::TensorImpl::autograd_meta_>;

inline bool has_autograd_state(const c10::TensorImpl& tensor) { return autograd_meta(tensor) != nullptr; }

inline bool requires_grad(const c10::TensorImpl& tensor) {
  return has_autograd_state(tensor) && tensor.requires_grad();
}

// Whether the tensor is a dual one of forward mode.
inline bool has_tangent(c10::TensorImpl& tensor) {
  return has_autograd_state(tensor) &&
         at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(&tensor))
             ._fw_grad(0)
             .defined();
}

// An inference tensor has none. PyTorch refuses to mutate it outside inference mode.
inline bool has_version_counter(const c10::TensorImpl& tensor) { return tensor.version_counter().enabled(); }

// The identity of a version counter. Views of a tensor share its counter; `.data` and what else is no view has its own,
// so a version says something about a storage's contents only together with its counter.
const void* counter_identity(const c10::VariableVersion& version);
template <auto Member>
struct VersionCounterAccess {
  friend const void* counter_identity(const c10::VariableVersion& version) { return (version.*Member).get(); }
};
template struct VersionCounterAccess<&c10::VariableVersion::version_counter_>;

// The identity that PyTorch's alias check compares, or null where a tensor has no storage. TensorImpl::has_storage is
// virtual; a tensor without one holds a null here just as well.
inline const c10::StorageImpl* storage_identity(const c10::TensorImpl& tensor) {
  return tensor.unsafe_storage().unsafeGetStorageImpl();
}

}  // namespace dutyfree::torch_compat
