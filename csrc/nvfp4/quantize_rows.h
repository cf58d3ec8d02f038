#pragma once

#include <algorithm>
#include <cstdint>

#include "nvfp4/format.h"
#include "nvfp4/kernels.h"

// Rows of floats to NVFP4, as plain loops of known length that the compiler turns into vector code. Each target's
// kernels.cpp includes this file and is compiled for its instruction set; the unnamed namespace keeps what is compiled
// for one of them out of the others.
namespace dutyfree::nvfp4 {
namespace {

// How two neighbours, which become one byte, are read from memory.
struct Bf16 {
  using Pair = std::uint32_t;
  static float low(Pair pair) { return float_of(pair << 16); }
  static float high(Pair pair) { return float_of(pair & 0xFFFF0000U); }
};
struct Fp16 {
  using Pair = std::uint32_t;
  static float low(Pair pair) { return fp16_value(pair & 0xFFFFU); }
  static float high(Pair pair) { return fp16_value(pair >> 16); }
};
struct E4m3 {
  using Pair = std::uint16_t;
  static float low(Pair pair) { return e4m3_value(pair & 0xFFU); }
  static float high(Pair pair) { return e4m3_value(pair >> 8U); }
};
struct Fp32 {
  using Pair = std::uint64_t;
  static float low(Pair pair) { return float_of(static_cast<std::uint32_t>(pair)); }
  static float high(Pair pair) { return float_of(static_cast<std::uint32_t>(pair >> 32)); }
};

constexpr int kPairs = kBlock / 2;
// Blocks whose scale factors are computed together.
constexpr int kChunk = 16;

[[gnu::always_inline]] inline std::uint32_t magnitude_bits(float value) {
  const std::uint32_t bits = bits_of(value) & 0x7FFFFFFFU;
  return bits > 0x7F800000U ? 0U : bits;  // NaN lanes are left out
}

// A whole number of blocks of one row, a constant. The loops run over all pairs at once: a loop over the eight pairs of
// one block would be unrolled, not vectorised.
template <typename Input, int blocks>
void quantize_chunk(const typename Input::Pair* __restrict input,
                    float global_scale,
                    std::uint8_t* __restrict values,
                    std::uint8_t* __restrict scales) {
  constexpr int kAll = blocks * kPairs;
  std::uint32_t magnitudes[kAll];
  for (int pair = 0; pair < kAll; ++pair) {
    // Non-negative floats are in the order of their bits, and a maximum of integers has no NaN to mind.
    const std::uint32_t low = magnitude_bits(Input::low(input[pair]));
    const std::uint32_t high = magnitude_bits(Input::high(input[pair]));
    magnitudes[pair] = low > high ? low : high;
  }
  for (int count = kAll / 2; count >= blocks; count /= 2) {
    for (int i = 0; i < count; ++i) {
      const std::uint32_t left = magnitudes[2 * i];
      const std::uint32_t right = magnitudes[2 * i + 1];
      magnitudes[i] = left > right ? left : right;
    }
  }
  std::uint32_t codes[blocks];
  float element_scales[blocks];
  for (int block = 0; block < blocks; ++block) {
    const float largest = float_of(magnitudes[block]);
    codes[block] = scale_code(global_scale, largest);
    element_scales[block] = element_scale(global_scale, largest, codes[block]);
  }
  for (int block = 0; block < blocks; ++block) {
    scales[block] = static_cast<std::uint8_t>(codes[block]);
  }
  float scale_of_pair[kAll];
  for (int block = 0; block < blocks; ++block) {
#pragma GCC unroll 8
    for (int pair = 0; pair < kPairs; ++pair) {
      scale_of_pair[block * kPairs + pair] = element_scales[block];
    }
  }
  for (int pair = 0; pair < kAll; ++pair) {
    const std::uint32_t low = e2m1_code(Input::low(input[pair]) * scale_of_pair[pair]);
    const std::uint32_t high = e2m1_code(Input::high(input[pair]) * scale_of_pair[pair]);
    values[pair] = static_cast<std::uint8_t>(low | high << 4);
  }
}

template <typename Input>
void quantize_rows_of(const QuantizeRows& rows, std::int64_t first, std::int64_t last) {
  const std::int64_t blocks = rows.columns / kBlock;
  const auto* input = static_cast<const typename Input::Pair*>(rows.input);
  for (std::int64_t row = first; row < last; ++row) {
    const float global_scale = rows.global_scale[row * rows.global_scale_stride];
    for (std::int64_t block = 0; block < blocks;) {
      const std::int64_t at = (row * blocks + block) * kPairs;
      std::uint8_t scales[kChunk];
      const int count = blocks - block >= kChunk ? kChunk : 1;
      if (count == kChunk) {
        quantize_chunk<Input, kChunk>(input + at, global_scale, rows.values + at, scales);
      } else {
        quantize_chunk<Input, 1>(input + at, global_scale, rows.values + at, scales);
      }
      if (rows.swizzled) {
        for (int i = 0; i < count; ++i) {
          rows.scale_factors[swizzled_offset(row, block + i, blocks)] = scales[i];
        }
      } else {
        std::copy_n(scales, count, rows.scale_factors + row * blocks + block);
      }
      block += count;
    }
  }
}

void quantize_rows(const QuantizeRows& rows, std::int64_t first, std::int64_t last) {
  switch (rows.element) {
    case Element::bf16:
      return quantize_rows_of<Bf16>(rows, first, last);
    case Element::fp16:
      return quantize_rows_of<Fp16>(rows, first, last);
    case Element::e4m3:
      return quantize_rows_of<E4m3>(rows, first, last);
    case Element::fp32:
      return quantize_rows_of<Fp32>(rows, first, last);
  }
}

}  // namespace
}  // namespace dutyfree::nvfp4
