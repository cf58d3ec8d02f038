#pragma once

#include <string>

#include "nvfp4/cuda/kernels.h"

// The library of CUDA kernels, which is loaded when the first CUDA tensor needs it and stays loaded.
namespace dutyfree::nvfp4::cuda {

struct Library {
  decltype(&dutyfree_nvfp4_error_text) error_text;
  decltype(&dutyfree_nvfp4_capability) capability;
  decltype(&dutyfree_nvfp4_quantize) quantize;
  decltype(&dutyfree_nvfp4_dequantize) dequantize;

  // Throws where `error`, a function's result, is one; `what` was being done.
  void check(int error, const char* what) const;
};

// Loads the library at `path`, for good. Throws c10::Error where there is none, or one of another build.
Library load(const std::string& path);

// The library beside the file that this code is in. May be called from any thread; where it throws, the next call tries
// again.
const Library& library();

}  // namespace dutyfree::nvfp4::cuda
