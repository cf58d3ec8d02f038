#pragma once

#include <algorithm>
#include <cstdint>

#include "nvfp4/format.h"
#include "nvfp4/kernels.h"

// The GEMM in integers. e2m1 codes doubled are whole numbers up to 12, so the sum over a block of 16 is one of at most
// 2304, exactly; it is made a float, multiplied with both scale factors and added up in float32.
//
// Processors multiply unsigned with signed bytes, so weights carry an offset of 12, and every sum starts from what the
// offset adds to it, which depends on the activations alone.
//
// Each target's kernels.cpp includes this file with an `Isa` of its own: vectors of a panel's 16 columns, see
// portable/kernels.cpp. The unnamed namespace keeps what is compiled for one target out of the others.
namespace dutyfree::nvfp4 {
namespace {

constexpr int kOffset = 12;
// Offset codes: 2 * e2m1 + 12.
constexpr std::uint8_t kOffsetCodes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// A row of activations, packed: bytes of doubled codes, then for each block the sum's start and the scale factor, which
// includes the two halves that doubling has to be paid back with.
struct PackedRow {
  const std::int8_t* codes;
  const std::int32_t* starts;
  const float* scales;
};

inline std::int64_t int8_activation_bytes(std::int64_t blocks) {
  return (blocks * (kBlock + sizeof(std::int32_t) + sizeof(float)) + 63) / 64 * 64;
}

inline PackedRow packed_row(const Gemm& gemm, std::int64_t row) {
  const std::int64_t blocks = gemm.weight.blocks;
  const std::byte* at = gemm.activations + row * int8_activation_bytes(blocks);
  const std::byte* starts = at + blocks * kBlock;
  return {reinterpret_cast<const std::int8_t*>(at), reinterpret_cast<const std::int32_t*>(starts),
          reinterpret_cast<const float*>(starts + blocks * sizeof(std::int32_t))};
}

void pack_int8_activations(const Gemm& gemm, std::int64_t first, std::int64_t last) {
  const std::int64_t blocks = gemm.weight.blocks;
  for (std::int64_t row = first; row < last; ++row) {
    const PackedRow packed = packed_row(gemm, row);
    auto* codes = const_cast<std::int8_t*>(packed.codes);
    auto* starts = const_cast<std::int32_t*>(packed.starts);
    auto* scales = const_cast<float*>(packed.scales);
    const std::uint8_t* values = gemm.values + (gemm.first_row + row) * blocks * (kBlock / 2);
    for (std::int64_t i = 0; i < blocks * (kBlock / 2); ++i) {
      const std::uint8_t pair = values[i];
      codes[2 * i] = static_cast<std::int8_t>(doubled_e2m1(pair & 15U));
      codes[2 * i + 1] = static_cast<std::int8_t>(doubled_e2m1(pair >> 4U));
    }
    for (std::int64_t block = 0; block < blocks; ++block) {
      std::int32_t sum = 0;
      for (int i = 0; i < kBlock; ++i) {
        sum += codes[block * kBlock + i];
      }
      starts[block] = -kOffset * sum;
      scales[block] = 0.25F * e4m3_value(gemm.scale_factors[swizzled_offset(gemm.first_row + row, block, blocks)]);
    }
  }
}

// One row of a tile into the result, as alpha * sum + bias, rounded once.
inline void store_row(const Gemm& gemm, const float* sums, std::int64_t row, std::int64_t column, std::int64_t count) {
  float values[4 * kPanel];
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = gemm.alpha * sums[i];
  }
  if (gemm.bias != nullptr) {
    for (std::int64_t i = 0; i < count; ++i) {
      values[i] += gemm.bias[column + i];
    }
  }
  const std::int64_t at = row * gemm.columns + column;
  if (gemm.element == Element::bf16) {
    auto* out = static_cast<std::uint16_t*>(gemm.out) + at;
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<std::uint16_t>(bf16_bits(values[i]));
    }
  } else if (gemm.element == Element::fp16) {
    auto* out = static_cast<std::uint16_t*>(gemm.out) + at;
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<std::uint16_t>(fp16_bits(values[i]));
    }
  } else {
    std::copy_n(values, count, static_cast<float*>(gemm.out) + at);
  }
}

// `rows` rows from `row` on, panels from `panel` on.
template <typename Isa, int rows, int panels>
void int8_tile(const Gemm& gemm, std::int64_t row, std::int64_t panel) {
  const std::int64_t blocks = gemm.weight.blocks;
  PackedRow packed[rows];
  for (int r = 0; r < rows; ++r) {
    packed[r] = packed_row(gemm, row + r);
  }
  const std::uint8_t* codes = gemm.weight.codes + panel * blocks * kPanelBlock;
  const std::uint16_t* scales = gemm.weight.scales + panel * blocks * kPanel;
  typename Isa::Floats sums[rows][panels];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) {
      sums[r][p] = Isa::zero();
    }
  }
  for (std::int64_t block = 0; block < blocks; ++block) {
    typename Isa::Codes weight[panels];
    typename Isa::Floats scale[panels];
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) {
      weight[p] = Isa::codes(codes + (p * blocks + block) * kPanelBlock);
      scale[p] = Isa::scales(scales + (p * blocks + block) * kPanel);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < panels; ++p) {
        Isa::add(sums[r][p], weight[p], packed[r].codes + block * kBlock, packed[r].starts[block], scale[p],
                 packed[r].scales[block]);
      }
    }
  }
  alignas(64) float out[panels * kPanel];
  const std::int64_t column = panel * kPanel;
  const std::int64_t count = std::min<std::int64_t>(panels * kPanel, gemm.columns - column);
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) {
      Isa::store(out + p * kPanel, sums[r][p]);
    }
    store_row(gemm, out, row + r, column, count);
  }
}

// The tiles of up to `rows` rows: most are full, the last has what is left.
template <typename Isa, int panels, int rows = Isa::kRows>
void int8_rows(const Gemm& gemm, std::int64_t row, std::int64_t count, std::int64_t panel) {
  if (count == rows) {
    int8_tile<Isa, rows, panels>(gemm, row, panel);
  } else if constexpr (rows > 1) {
    int8_rows<Isa, panels, rows - 1>(gemm, row, count, panel);
  }
}

// Bytes of packed activations that should stay in the second-level cache while all panels pass by.
constexpr std::int64_t kBytesInCache = 400'000;

template <typename Isa>
void int8_gemm(const Gemm& gemm, std::int64_t first, std::int64_t last, std::byte* /*scratch*/) {
  const std::int64_t tiles =
      std::max<std::int64_t>(1, kBytesInCache / (Isa::kRows * int8_activation_bytes(gemm.weight.blocks)));
  const std::int64_t rows = tiles * Isa::kRows;
  for (std::int64_t group = 0; group < gemm.rows; group += rows) {
    const std::int64_t end = std::min(gemm.rows, group + rows);
    for (std::int64_t panel = first; panel < last;) {
      const bool full = last - panel >= Isa::kPanels;
      for (std::int64_t row = group; row < end; row += Isa::kRows) {
        const std::int64_t count = std::min<std::int64_t>(Isa::kRows, end - row);
        if (full) {
          int8_rows<Isa, Isa::kPanels>(gemm, row, count, panel);
        } else {
          int8_rows<Isa, 1>(gemm, row, count, panel);
        }
      }
      panel += full ? Isa::kPanels : 1;
    }
  }
}

std::int64_t no_scratch(std::int64_t /*blocks*/) { return 0; }

}  // namespace
}  // namespace dutyfree::nvfp4
