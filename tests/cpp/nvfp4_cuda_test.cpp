// What of NVFP4 on CUDA tensors can be seen without a GPU.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "nvfp4/cuda/backend.h"
#include "nvfp4/cuda/library.h"
#include "torch_compat/scaled_mm.h"

namespace dutyfree::nvfp4::cuda {
namespace {

TEST(Nvfp4Cuda, scaled_mm_is_offered_where_it_takes_the_sizes) {
  EXPECT_EQ(backends_for(90, 1024, 1024), bit(Backend::bf16_mm));
  EXPECT_EQ(backends_for(100, 192, 128), bit(Backend::cublaslt) | bit(Backend::bf16_mm));
  EXPECT_EQ(backends_for(120, 192, 128), bit(Backend::cublaslt) | bit(Backend::bf16_mm));
  EXPECT_EQ(backends_for(100, 192, 144), bit(Backend::bf16_mm));
  EXPECT_EQ(backends_for(100, 200, 128), bit(Backend::bf16_mm));
}

std::string message_of_load(const std::string& path) {
  try {
    load(path);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(Nvfp4Cuda, a_missing_library_is_named_with_the_way_to_build_it) {
  const std::string message = message_of_load("/nowhere/libdutyfree_nvfp4_cuda.so");
  EXPECT_NE(message.find("/nowhere/libdutyfree_nvfp4_cuda.so"), std::string::npos) << message;
  EXPECT_NE(message.find("No such file"), std::string::npos) << message;
  EXPECT_NE(message.find("make cuda"), std::string::npos) << message;
}

TEST(Nvfp4Cuda, a_library_without_the_functions_is_refused) {
  const std::string message = message_of_load("libm.so.6");
  EXPECT_NE(message.find("another version"), std::string::npos) << message;
}

// PyTorch checks types, sizes and recipes of tensors without data as it does on a GPU.
TEST(Nvfp4Cuda, scaled_mm_accepts_what_it_is_given) {
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(at::kMeta);
  const at::Tensor a = at::empty({5, 64}, bytes);
  const at::Tensor b = at::empty({48, 64}, bytes);
  const at::Tensor a_scale_factors = at::empty({128 * 8}, bytes);
  const at::Tensor b_scale_factors = at::empty({128 * 8}, bytes);
  const at::Tensor alpha = at::empty({1}, bytes.dtype(at::kFloat));
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor product =
        torch_compat::scaled_mm_of_nvfp4(a, b, a_scale_factors, b_scale_factors, alpha, std::nullopt, dtype);
    EXPECT_EQ(product.sizes(), (c10::IntArrayRef{5, 48}));
    EXPECT_EQ(product.scalar_type(), dtype);
  }
}

}  // namespace
}  // namespace dutyfree::nvfp4::cuda
