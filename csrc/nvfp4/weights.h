#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

#include "nvfp4/kernels.h"

// Weights in the order in which the kernels read them, made at the first call and kept. One is found again by the
// storages of the weight and of its scale factors, where in them and in what shape, and the versions that both had:
// changed in place, it is made anew. What PyTorch does not count as a change (through `.data`, NumPy or DLPack) can't
// be seen here; forget_packed_weights is for that.
//
// An entry does not keep the weight alive. It is dropped when the weight's memory is gone, at the next look at the
// cache by anyone, or when all together are larger than the limit, the longest unused first.
namespace dutyfree::nvfp4 {

enum class Form : std::uint8_t {
  panels,  // PackedWeight, for the kernels of all targets
  bf16,    // (N, K) bfloat16 without the global scale, in which the product of code and scale factor is exact
};

// One weight, unchanging from when it is made. Threads may share it.
struct Packed {
  at::Tensor memory;      // of either form; owns what the pointers point to
  PackedWeight panels{};  // of that form
};

// The weight in this form, from the cache or made now. Any thread.
std::shared_ptr<const Packed> packed_weight(const at::Tensor& weight, const at::Tensor& weight_scale, Form form);

struct PackedWeights {
  std::int64_t entries;
  std::int64_t bytes;
  std::int64_t limit;
  std::int64_t made;  // since the process began
};
// What is kept now, for weights that still exist.
PackedWeights packed_weights();
void forget_packed_weights();
// Of one weight, in one form.
void forget_packed_weight(const at::Tensor& weight, const at::Tensor& weight_scale, Form form);
// In bytes. What is over it is dropped at once.
void limit_packed_weights(std::int64_t bytes);

}  // namespace dutyfree::nvfp4
