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

// Some blocks of a row, from `block` on, at most `count`; the result says how many. Their scale factors go to `scales`.
template <typename Input>
int quantize_some(const QuantizeRows& rows,
                  std::int64_t row,
                  std::int64_t block,
                  std::int64_t count,
                  std::uint8_t* scales) {
  const std::int64_t at = (row * (rows.columns / kBlock) + block) * kPairs;
  const auto* input = static_cast<const typename Input::Pair*>(rows.input) + at;
  const float global_scale = rows.global_scale[row * rows.global_scale_stride];
  if (count >= kChunk) {
    quantize_chunk<Input, kChunk>(input, global_scale, rows.values + at, scales);
    return kChunk;
  }
  quantize_chunk<Input, 1>(input, global_scale, rows.values + at, scales);
  return 1;
}

// Columns of scale factors that are done for all rows of a tile before the next.
constexpr std::int64_t kColumns = 256;

// From scale factors of a tile's rows, kColumns apart, to their places, which lie between those of other rows. Filling
// a cache line at once is what makes it cheap: row by row takes as long as all the rest.
inline void swizzle_tile(const QuantizeRows& rows,
                         std::int64_t first,
                         std::int64_t last,
                         std::int64_t block,
                         std::int64_t count,
                         const std::uint8_t* scales) {
  const std::int64_t blocks = rows.columns / kBlock;
  const std::int64_t tile = first / 128 * 128;
  for (std::int64_t column = 0; column < count; column += 4) {
    const std::int64_t width = count - column < 4 ? count - column : 4;
    std::uint8_t* to = rows.scale_factors + swizzled_offset(tile, block + column, blocks);
    for (std::int64_t i = 0; i < 128; ++i) {
      const std::int64_t row = i % 4 * 32 + i / 4;
      if (tile + row >= first && tile + row < last) {
        const std::uint8_t* from = scales + row * kColumns + column;
        if (width == 4) {
          __builtin_memcpy(to + i * 4, from, 4);
        } else {
          std::copy_n(from, width, to + i * 4);
        }
      }
    }
  }
}

// Rows from `first` up to `last` by calls of some(rows, row, block, count, scales), which is quantize_some or does
// more.
template <typename Some>
[[gnu::always_inline]] inline void quantize_each(const QuantizeRows& rows,
                                                 std::int64_t first,
                                                 std::int64_t last,
                                                 const Some& some) {
  const std::int64_t blocks = rows.columns / kBlock;
  std::uint8_t tile_scales[128 * kColumns];
  for (std::int64_t begin = first; begin < last;) {
    const std::int64_t end = std::min(last, begin / 128 * 128 + 128);
    for (std::int64_t column = 0; column < blocks; column += kColumns) {
      const std::int64_t count = std::min(kColumns, blocks - column);
      for (std::int64_t row = begin; row < end; ++row) {
        std::uint8_t* scales =
            rows.swizzled ? tile_scales + row % 128 * kColumns : rows.scale_factors + row * blocks + column;
        for (std::int64_t done = 0; done < count;) {
          done += some(rows, row, column + done, count - done, scales + done);
        }
      }
      if (rows.swizzled) {
        swizzle_tile(rows, begin, end, column, count, tile_scales);
      }
    }
    begin = end;
  }
}

template <typename Input>
void quantize_rows_of(const QuantizeRows& rows, std::int64_t first, std::int64_t last) {
  quantize_each(rows, first, last, quantize_some<Input>);
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
