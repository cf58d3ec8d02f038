#include "torch_compat/direct_kernel.h"

#include <dlfcn.h>

namespace dutyfree::torch_compat {

std::string library_of(const void* code) {
  Dl_info info{};
  return dladdr(code, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::set<std::string> libraries_of(const c10::OperatorHandle& op) {
  std::set<std::string> files;
  KernelIdentity last = nullptr;
  for (const c10::KernelFunction& kernel : dispatch_table(operator_entry(op))) {
    const KernelIdentity identity = kernel_identity(kernel);
    if (identity == last) {
      continue;  // neighbours in the table often share a kernel, and looking closer takes time for 3,600 operators
    }
    last = identity;
    const DirectKernel* direct = direct_kernel(kernel);
    if (direct != nullptr && direct->call != nullptr) {
      files.insert(library_of(reinterpret_cast<const void*>(direct->call)));
    }
  }
  return files;
}

void keep_library(const void* code) {
  const std::string file = library_of(code);
  if (!file.empty()) {
    // The handle is never closed, and the flag outlives every other one.
    (void)dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

}  // namespace dutyfree::torch_compat
