#pragma once

#include <cstdint>

#include "nvfp4/cuda/kernels.h"
#include "nvfp4/format.h"

// What one thread of each kernel does. It is compiled for the host too, where tests run it thread by thread and compare
// what it writes: a machine without a GPU checks all of it but the launch.
namespace dutyfree::nvfp4::cuda {

// Sixteen bytes that move at once.
struct alignas(16) Word {
  std::uint32_t part[4];
};
// The codes of a block.
struct alignas(8) Codes {
  std::uint32_t part[2];
};

// Bytes of an element of a DutyfreeNvfp4Dtype.
template <int kDtype>
constexpr int kElementSize = kDtype == kDutyfreeFloat32 ? 4 : (kDtype == kDutyfreeFloat8E4M3 ? 1 : 2);

// A block of 16 elements, which are as many words as an element has bytes.
template <int kDtype>
DUTYFREE_NVFP4_FUNCTION void load_block(const void* input, std::int64_t block, float (&elements)[kBlock]) {
  constexpr int kSize = kElementSize<kDtype>;
  Word words[kSize];
  for (int i = 0; i < kSize; ++i) words[i] = (static_cast<const Word*>(input) + block * kSize)[i];
  for (int i = 0; i < kBlock; ++i) {
    const unsigned byte = static_cast<unsigned>(i) * kSize;
    const std::uint32_t word = words[byte / 16].part[byte / 4 % 4] >> (8U * (byte % 4U));
    if constexpr (kDtype == kDutyfreeFloat32) {
      elements[i] = float_of(word);
    } else if constexpr (kDtype == kDutyfreeFloat16) {
      elements[i] = fp16_value(word & 0xFFFFU);
    } else if constexpr (kDtype == kDutyfreeBFloat16) {
      elements[i] = bf16_value(word & 0xFFFFU);
    } else {
      elements[i] = e4m3_value(word & 0xFFU);
    }
  }
}

template <int kDtype>
DUTYFREE_NVFP4_FUNCTION void store_block(void* output, std::int64_t block, const float (&elements)[kBlock]) {
  constexpr int kSize = kElementSize<kDtype>;
  Word words[kSize] = {};
  for (int i = 0; i < kBlock; ++i) {
    const std::uint32_t bits = kDtype == kDutyfreeFloat32   ? bits_of(elements[i])
                               : kDtype == kDutyfreeFloat16 ? fp16_bits(elements[i])
                                                            : bf16_bits(elements[i]);
    const unsigned byte = static_cast<unsigned>(i) * kSize;
    words[byte / 16].part[byte / 4 % 4] |= bits << (8U * (byte % 4U));
  }
  for (int i = 0; i < kSize; ++i) (static_cast<Word*>(output) + block * kSize)[i] = words[i];
}

// Threads are numbered along the scale factors that are written, row by row, those that only pad the swizzled layout
// among them.
template <bool kSwizzled>
DUTYFREE_NVFP4_FUNCTION std::int64_t quantize_threads(const DutyfreeNvfp4Quantize& call) {
  const std::int64_t blocks = call.columns / kBlock;
  return kSwizzled ? swizzled_size(call.rows, blocks) : call.rows * blocks;
}

// Index is an unsigned type that holds quantize_threads: in 64 bits the two divisions cost several times as much.
template <int kDtype, bool kSwizzled, typename Index>
DUTYFREE_NVFP4_FUNCTION void quantize_thread(const DutyfreeNvfp4Quantize& call, Index thread) {
  const auto blocks = static_cast<Index>(call.columns / kBlock);
  const auto rows = static_cast<Index>(call.rows);
  const Index width = kSwizzled ? (blocks + 3) / 4 * 4 : blocks;
  const Index row = thread / width;
  const Index block = thread % width;
  const std::int64_t offset = kSwizzled ? swizzled_offset(row, block, blocks) : static_cast<std::int64_t>(thread);
  if (row >= rows || block >= blocks) {
    call.scale_factors[offset] = 0;
    return;
  }

  const std::int64_t source = static_cast<std::int64_t>(row) * blocks + block;
  float elements[kBlock];
  load_block<kDtype>(call.input, source, elements);
  float largest = 0.0F;
  for (int i = 0; i < kBlock; ++i) {
    const float magnitude = float_of(bits_of(elements[i]) & 0x7FFFFFFFU);
    largest = magnitude > largest ? magnitude : largest;  // not for a NaN
  }
  const float global_scale = call.global_scale[call.scale_per_row != 0 ? row : 0];
  const std::uint32_t scale = scale_code(global_scale, largest);
  const float factor = element_scale(global_scale, largest, scale);
  call.scale_factors[offset] = static_cast<std::uint8_t>(scale);

  Codes codes = {};
  for (unsigned i = 0; i < kBlock; ++i) codes.part[i / 8] |= e2m1_code(elements[i] * factor) << (4U * (i % 8U));
  reinterpret_cast<Codes*>(call.values)[source] = codes;
}

// One thread for each block of 16 elements.
DUTYFREE_NVFP4_FUNCTION std::int64_t dequantize_threads(const DutyfreeNvfp4Dequantize& call) {
  return call.rows * (call.columns / kBlock);
}

template <int kDtype, bool kSwizzled, typename Index>
DUTYFREE_NVFP4_FUNCTION void dequantize_thread(const DutyfreeNvfp4Dequantize& call, Index thread) {
  const auto blocks = static_cast<Index>(call.columns / kBlock);
  const Index row = thread / blocks;
  const auto source = static_cast<std::int64_t>(thread);
  const float scale =
      e4m3_value(call.scale_factors[kSwizzled ? swizzled_offset(row, thread % blocks, blocks) : source]);
  const Codes codes = reinterpret_cast<const Codes*>(call.values)[source];
  float elements[kBlock];
  for (unsigned i = 0; i < kBlock; ++i) elements[i] = e2m1_value(codes.part[i / 8] >> (4U * (i % 8U)) & 0xFU) * scale;
  if (call.global_scale != nullptr) {
    const float global_scale = call.global_scale[call.scale_per_row != 0 ? row : 0];
    for (int i = 0; i < kBlock; ++i) elements[i] /= global_scale;
  }
  store_block<kDtype>(call.output, source, elements);
}

}  // namespace dutyfree::nvfp4::cuda
