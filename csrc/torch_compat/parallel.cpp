#include "torch_compat/parallel.h"

#include <ATen/Parallel.h>

namespace dutyfree::torch_compat {

void run_in_parallel(std::int64_t count, std::int64_t grain, Share share, const void* work) {
  at::parallel_for(0, count, grain, [&](std::int64_t first, std::int64_t last) { share(work, first, last); });
}

}  // namespace dutyfree::torch_compat
