#include "nvfp4/target.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <atomic>

namespace dutyfree::nvfp4 {
namespace {

// Written by force_target, read by every call, in any thread; what it points to lives for ever.
std::atomic<const Kernels*> forced = nullptr;

}  // namespace

const std::vector<const Kernels*>& available_targets() {
  static const std::vector<const Kernels*> targets = [] {
    // From the slowest to the fastest. bf16 products take twice the instructions that products of bytes take, which
    // more than outweighs that they need no scale factors: docs/nvfp4.md has the figures.
    std::vector<const Kernels*> found;
    for (const Kernels* kernels : {
             &portable_kernels,
#if defined(__x86_64__)
             &avx2_kernels,
             &avx512_bf16_kernels,
             &avx512_vnni_kernels,
#endif
         }) {
      if (kernels->supported()) {
        found.push_back(kernels);
      }
    }
    return found;
  }();
  return targets;
}

std::vector<std::string> target_names() {
  std::vector<std::string> names;
  for (const Kernels* target : available_targets()) {
    names.emplace_back(target->name);
  }
  return names;
}

const Kernels* forced_target() { return forced.load(std::memory_order_acquire); }

const Kernels& chosen_target() {
  static const Kernels& best = *available_targets().back();
  const Kernels* asked = forced_target();
  return asked == nullptr ? best : *asked;
}

void force_target(std::string_view name) {
  const Kernels* found = nullptr;
  for (const Kernels* kernels : available_targets()) {
    if (name == kernels->name) {
      found = kernels;
    }
  }
  TORCH_CHECK_VALUE(found != nullptr || name.empty(), "dutyfree: this machine can't run a CPU target '", name,
                    "'; it can run ", c10::Join(", ", target_names()), ".");
  forced.store(found, std::memory_order_release);
}

}  // namespace dutyfree::nvfp4
