// Compiled for AVX-512 with BF16: pairs of bf16 products. An element times its block's scale factor is exact in bf16,
// so what is left to round is the sum, in float32.
#include "nvfp4/kernels.h"

#include <immintrin.h>

#include "nvfp4/avx512/quantize.h"
#include "nvfp4/gemm_int8.h"

namespace dutyfree::nvfp4 {
namespace {

constexpr int kTileRows = 12;
constexpr int kTilePanels = 2;
// Vectors of a panel's pairs for one block.
constexpr int kVectors = kBlock / 2;

std::int64_t bf16_activation_bytes(std::int64_t blocks) {
  return blocks * kBlock * static_cast<std::int64_t>(sizeof(std::uint16_t));
}

const std::int32_t* bf16_row(const Gemm& gemm, std::int64_t row) {
  return reinterpret_cast<const std::int32_t*>(gemm.activations + row * bf16_activation_bytes(gemm.weight.blocks));
}

void pack_bf16_activations(const Gemm& gemm, std::int64_t first, std::int64_t last) {
  decode_to_bf16(gemm.values, gemm.scale_factors, reinterpret_cast<std::uint16_t*>(gemm.activations), gemm.first_row,
                 gemm.weight.blocks, gemm.first_row + first, gemm.first_row + last);
}

// A panel's weights as bf16: for each block eight vectors, vector v with elements 2v and 2v + 1 of each column.
std::int64_t bf16_scratch_bytes(std::int64_t blocks) { return kTilePanels * blocks * kVectors * 64; }

void unpack_panel(const PackedWeight& weight, std::int64_t panel, __m512i* to) {
  alignas(64) static constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                                    -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  const __m512 values = _mm512_load_ps(kValues);
  for (std::int64_t block = 0; block < weight.blocks; ++block) {
    const std::int64_t at = panel * weight.blocks + block;
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight.scales + at * kPanel));
    const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
    // What a code stands for in this block, looked up by the low four bits of each 32: the vector's rows differ in
    // scale, so the product is made lane by lane.
    const auto value = [&](__m512i fours, int shift) {
      return _mm512_castps_si512(_mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(fours,
                                                                                       static_cast<unsigned>(shift)),
                                                                     values),
                                               scale));
    };
    for (int part = 0; part < 2; ++part) {
      const __m512i fours = _mm512_loadu_si512(weight.codes + at * kPanelBlock + part * 64);
      for (int quarter = 0; quarter < 2; ++quarter) {
        for (int pair = 0; pair < 2; ++pair) {
          // The low halves of bytes 2 * pair and 2 * pair + 1, or the high ones. Their floats have nothing in the bits
          // that bf16 lacks.
          const int shift = 16 * pair + 4 * quarter;
          const __m512i first = _mm512_srli_epi32(value(fours, shift), 16);
          const __m512i second = value(fours, shift + 8);
          to[block * kVectors + part * 4 + quarter * 2 + pair] = _mm512_or_si512(first, second);
        }
      }
    }
  }
}

template <int rows, int panels>
void bf16_tile(const Gemm& gemm, std::int64_t row, std::int64_t panel, const __m512i* weights) {
  const std::int64_t vectors = gemm.weight.blocks * kVectors;
  const std::int32_t* pairs[rows];
  for (int r = 0; r < rows; ++r) {
    pairs[r] = bf16_row(gemm, row + r);
  }
  __m512 sums[rows][panels];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) {
      sums[r][p] = _mm512_setzero_ps();
    }
  }
  for (std::int64_t vector = 0; vector < vectors; ++vector) {
    __m512bh weight[panels];
#pragma GCC unroll 4
    for (int p = 0; p < panels; ++p) {
      weight[p] = reinterpret_cast<__m512bh>(weights[p * vectors + vector]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const auto activation = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pairs[r][vector]));
#pragma GCC unroll 4
      for (int p = 0; p < panels; ++p) {
        sums[r][p] = _mm512_dpbf16_ps(sums[r][p], weight[p], activation);
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
      _mm512_store_ps(out + p * kPanel, sums[r][p]);
    }
    store_row(gemm, out, row + r, column, count);
  }
}

template <int panels, int rows = kTileRows>
void bf16_rows(const Gemm& gemm, std::int64_t row, std::int64_t count, std::int64_t panel, const __m512i* weights) {
  if (count == rows) {
    bf16_tile<rows, panels>(gemm, row, panel, weights);
  } else if constexpr (rows > 1) {
    bf16_rows<panels, rows - 1>(gemm, row, count, panel, weights);
  }
}

void bf16_gemm(const Gemm& gemm, std::int64_t first, std::int64_t last, std::byte* scratch) {
  auto* weights = reinterpret_cast<__m512i*>(scratch);
  const std::int64_t vectors = gemm.weight.blocks * kVectors;
  for (std::int64_t panel = first; panel < last;) {
    const bool full = last - panel >= kTilePanels;
    unpack_panel(gemm.weight, panel, weights);
    if (full) {
      unpack_panel(gemm.weight, panel + 1, weights + vectors);
    }
    for (std::int64_t row = 0; row < gemm.rows; row += kTileRows) {
      const std::int64_t count = std::min<std::int64_t>(kTileRows, gemm.rows - row);
      if (full) {
        bf16_rows<kTilePanels>(gemm, row, count, panel, weights);
      } else {
        bf16_rows<1>(gemm, row, count, panel, weights);
      }
    }
    panel += full ? kTilePanels : 1;
  }
}

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16");
}

}  // namespace

const Kernels avx512_bf16_kernels = {"avx512_bf16",          &supported, &quantize_rows_avx512, &bf16_activation_bytes,
                                     &pack_bf16_activations, &bf16_gemm, &bf16_scratch_bytes};

}  // namespace dutyfree::nvfp4
