#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "nvfp4/kernels.h"
#include "torch_compat/gil.h"

// From tensors to the plain memory that kernels read.
namespace dutyfree::nvfp4 {

inline Element element_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kBFloat16:
      return Element::bf16;
    case c10::kHalf:
      return Element::fp16;
    case c10::kFloat8_e4m3fn:
      return Element::e4m3;
    default:
      return Element::fp32;
  }
}

inline const std::uint8_t* bytes_of(const at::Tensor& tensor) {
  return static_cast<const std::uint8_t*>(tensor.const_data_ptr());
}
inline std::uint8_t* mutable_bytes_of(const at::Tensor& tensor) {
  return static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
}

// Lets other Python threads run for its lifetime, if this one has the GIL, and keeps tensors alive that they could take
// away from the caller. For work of a tenth of a millisecond or more: it costs a tenth of a microsecond.
class LongWork {
 public:
  explicit LongWork(std::initializer_list<at::Tensor> tensors) : kept_(tensors) {}

 private:
  c10::SmallVector<at::Tensor, 6> kept_;  // before the GIL's, so that they go when it is back
  torch_compat::GilReleasedIfHeld released_;
};

}  // namespace dutyfree::nvfp4
