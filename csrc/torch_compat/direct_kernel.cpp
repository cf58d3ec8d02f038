#include "torch_compat/direct_kernel.h"

#include <dlfcn.h>

namespace dutyfree::torch_compat {

void keep_library_of(const DirectKernel& kernel) {
  Dl_info info{};
  // An object's first word leads to its class's table, which is in the library that made the object.
  if (dladdr(*reinterpret_cast<const void* const*>(&kernel), &info) != 0 && info.dli_fname != nullptr) {
    // The handle is never closed, and the flag outlives every other one.
    (void)dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

}  // namespace dutyfree::torch_compat
