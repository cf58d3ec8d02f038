#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <array>

// Read access to one operator's dispatch table. torch 2.13 and 2.14 keep these members private; 2.15 makes some of
// them public. An explicit template instantiation may name a private member on every version, so one source serves
// all of them. Nothing here writes, and nothing here is remembered between calls: the table is read on every call.
namespace dutyfree::torch_compat {

using DispatchTable = std::array<c10::KernelFunction, c10::num_runtime_entries>;

const c10::impl::OperatorEntry& operator_entry(const c10::OperatorHandle& handle);
template <auto Member>
struct OperatorEntryAccess {
  friend const c10::impl::OperatorEntry& operator_entry(const c10::OperatorHandle& handle) {
    return (handle.*Member)->op;
  }
};
template struct OperatorEntryAccess<&c10::OperatorHandle::operatorDef_>;

const DispatchTable& dispatch_table(const c10::impl::OperatorEntry& entry);
template <auto Member>
struct DispatchTableAccess {
  friend const DispatchTable& dispatch_table(const c10::impl::OperatorEntry& entry) { return entry.*Member; }
};
template struct DispatchTableAccess<&c10::impl::OperatorEntry::dispatchTable_>;

c10::DispatchKeySet non_fallthrough_keys(const c10::DispatchKeyExtractor& extractor);
template <auto Member>
struct NonFallthroughAccess {
  friend c10::DispatchKeySet non_fallthrough_keys(const c10::DispatchKeyExtractor& extractor) {
    return extractor.*Member;
  }
};
template struct NonFallthroughAccess<&c10::DispatchKeyExtractor::nonFallthroughKeys_>;

const std::array<c10::DispatchKeySet, c10::num_backends>&
non_fallthrough_keys_per_backend(const c10::DispatchKeyExtractor& extractor);
template <auto Member>
struct NonFallthroughPerBackendAccess {
  friend const std::array<c10::DispatchKeySet, c10::num_backends>&
  non_fallthrough_keys_per_backend(const c10::DispatchKeyExtractor& extractor) {
    return extractor.*Member;
  }
};
template struct NonFallthroughPerBackendAccess<&c10::DispatchKeyExtractor::nonFallthroughKeysPerBackend_>;

bool has_keys_per_backend(const c10::DispatchKeyExtractor& extractor);
template <auto Member>
struct KeysPerBackendAccess {
  friend bool has_keys_per_backend(const c10::DispatchKeyExtractor& extractor) { return extractor.*Member; }
};
template struct KeysPerBackendAccess<&c10::DispatchKeyExtractor::requiresBitsetPerBackend_>;

const c10::BoxedKernel& boxed_kernel(const c10::KernelFunction& kernel);
template <auto Member>
struct BoxedKernelAccess {
  friend const c10::BoxedKernel& boxed_kernel(const c10::KernelFunction& kernel) { return kernel.*Member; }
};
template struct BoxedKernelAccess<&c10::KernelFunction::boxed_kernel_func_>;

const c10::OperatorKernel* kernel_functor(const c10::BoxedKernel& kernel);
template <auto Member>
struct KernelFunctorAccess {
  friend const c10::OperatorKernel* kernel_functor(const c10::BoxedKernel& kernel) { return (kernel.*Member).get(); }
};
template struct KernelFunctorAccess<&c10::BoxedKernel::functor_>;

using BoxedFunction = c10::BoxedKernel::InternalBoxedKernelFunction*;
BoxedFunction boxed_function(const c10::BoxedKernel& kernel);
template <auto Member>
struct BoxedFunctionAccess {
  friend BoxedFunction boxed_function(const c10::BoxedKernel& kernel) { return kernel.*Member; }
};
template struct BoxedFunctionAccess<&c10::BoxedKernel::boxed_kernel_func_>;

// What tells one registered kernel from another: the address of its functor; of its code where it is a plain boxed
// function. Null for a missing kernel. A functor's address may be used again once it dies, so whoever compares against
// it keeps the KernelFunction alive.
using KernelIdentity = const void*;
inline KernelIdentity kernel_identity(const c10::KernelFunction& kernel) {
  const c10::BoxedKernel& boxed = boxed_kernel(kernel);
  const c10::OperatorKernel* functor = kernel_functor(boxed);
  return functor != nullptr ? functor : reinterpret_cast<const void*>(boxed_function(boxed));
}

// Where in a dispatch table the dispatcher looks for `keys`: a pure function of the key set. Negative where it reports
// an error.
inline int table_index(c10::DispatchKeySet keys) { return keys.getDispatchTableIndexForDispatchKeySet(); }

inline const c10::KernelFunction& kernel_at(const c10::impl::OperatorEntry& entry, int index) {
  return dispatch_table(entry)[static_cast<std::size_t>(index)];
}

inline KernelIdentity identity_at(const c10::impl::OperatorEntry& entry, int index) {
  return kernel_identity(kernel_at(entry, index));
}

// The dispatcher's key set of a call: `raw` is the union of the key sets of the tensor arguments.
inline c10::DispatchKeySet call_key_set(const c10::impl::OperatorEntry& entry,
                                        c10::DispatchKeySet raw,
                                        c10::DispatchKeySet included,
                                        c10::DispatchKeySet excluded) {
  const c10::DispatchKeyExtractor& extractor = entry.dispatchKeyExtractor();
  const c10::DispatchKeySet keys = (raw | included) - excluded;
  if (has_keys_per_backend(extractor)) [[unlikely]] {
    return keys & non_fallthrough_keys_per_backend(extractor)[static_cast<std::size_t>(keys.getBackendIndex())];
  }
  return keys & non_fallthrough_keys(extractor);
}

}  // namespace dutyfree::torch_compat
