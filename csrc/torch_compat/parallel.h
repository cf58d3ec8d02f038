#pragma once

#include <cstdint>
#include <utility>

// PyTorch's threads. at::parallel_for is a template that has to be compiled with OpenMP and linked with the very
// library that torch brought along, so only parallel.cpp is.
namespace dutyfree::torch_compat {

using Share = void (*)(const void* work, std::int64_t first, std::int64_t last);
void run_in_parallel(std::int64_t count, std::int64_t grain, Share share, const void* work);

// Calls work(first, last) for parts of [0, count), of at least `grain` where possible, in as many of PyTorch's threads
// as torch.get_num_threads() says; in this thread alone where the work is no more than `grain` or is part of another.
template <typename Work>
void parallel(std::int64_t count, std::int64_t grain, const Work& work) {
  run_in_parallel(
      count, grain,
      [](const void* context, std::int64_t first, std::int64_t last) {
        (*static_cast<const Work*>(context))(first, last);
      },
      &work);
}

}  // namespace dutyfree::torch_compat
