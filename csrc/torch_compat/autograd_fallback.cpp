#include "torch_compat/autograd_fallback.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <string>

namespace dutyfree::torch_compat {

using Fallbacks = std::array<c10::impl::AnnotatedKernel, c10::num_runtime_entries>;
const Fallbacks& backend_fallbacks(const c10::Dispatcher& dispatcher);
template <auto Member>
struct BackendFallbacksAccess {
  friend const Fallbacks& backend_fallbacks(const c10::Dispatcher& dispatcher) { return dispatcher.*Member; }
};
template struct BackendFallbacksAccess<&c10::Dispatcher::backendFallbackKernels_>;

namespace {

// libtorch exports neither the function nor its address. It registers the one function for every autograd key, and the
// dispatcher keeps the name of the file that did.
KernelIdentity find_autograd_fallback() {
  for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA, c10::DispatchKey::AutogradXPU,
                         c10::DispatchKey::AutogradMPS, c10::DispatchKey::AutogradMeta}) {
    const int index = table_index(c10::DispatchKeySet(key));
    const auto& fallback = backend_fallbacks(c10::Dispatcher::singleton())[static_cast<std::size_t>(index)];
    if (fallback.debug.find("VariableFallbackKernel.cpp") != std::string::npos &&
        kernel_functor(boxed_kernel(fallback.kernel)) == nullptr) {
      return kernel_identity(fallback.kernel);
    }
  }
  return nullptr;  // an unknown torch: no operator that needs the fallback is direct
}

}  // namespace

KernelIdentity autograd_fallback() {
  static const KernelIdentity identity = find_autograd_fallback();
  return identity;
}

bool autograd_fallback_records() {
  return torch::autograd::getAutogradFallbackMode() != torch::autograd::AutogradFallbackMode::Nothing;
}

}  // namespace dutyfree::torch_compat
