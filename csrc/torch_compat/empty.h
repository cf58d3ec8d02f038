#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

namespace dutyfree::torch_compat {

// A new contiguous CPU tensor without at::empty's way through the dispatcher, for kernels that run below all of its
// keys and write every element.
inline at::Tensor empty_cpu(at::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::Tensor(at::detail::empty_cpu(sizes, dtype));
}

}  // namespace dutyfree::torch_compat
