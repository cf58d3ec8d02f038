#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "nvfp4/format.h"
#include "nvfp4/kernels.h"
#include "nvfp4/quantize_rows.h"

// Rows of bf16 or fp16 to NVFP4 with AVX-512: what quantize_rows.h does, in half the instructions.
// Both AVX-512 targets include it. NaNs, blocks whose elements are multiplied with an infinity, and the ends of rows
// are left to quantize_rows.h.
namespace dutyfree::nvfp4 {
namespace {

// How a vector of 32 elements, two blocks, becomes two of 16 floats: the elements of even index and of odd index.
struct WideBf16 {
  using Narrow = Bf16;
  static constexpr short kInfinity = 0x7F80;
  static __m512 even(__m512i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
  static __m512 odd(__m512i words) {
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
  }
};
struct WideFp16 {
  using Narrow = Fp16;
  static constexpr short kInfinity = 0x7C00;
  static __m512 even(__m512i words) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)); }
  static __m512 odd(__m512i words) { return even(_mm512_srli_epi32(words, 16)); }
};

// The largest magnitude of each of 16 blocks, as bits of the element type in 16 words, in the order of the blocks; at
// `words` are 256 elements. Magnitudes are in the order of their bits; a NaN is larger than an infinity.
inline __m256i largest_magnitudes(const __m512i* words) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  __m512i fours[4];  // in each 64 bits what is left of a block's half: first of vector 2i, then of vector 2i + 1
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i first = _mm512_and_si512(_mm512_loadu_si512(words + 2 * i), magnitude);
    const __m512i second = _mm512_and_si512(_mm512_loadu_si512(words + 2 * i + 1), magnitude);
    fours[i] = _mm512_max_epu16(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
  }
  __m512i ones[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512 first = _mm512_castsi512_ps(fours[2 * i]);
    const __m512 second = _mm512_castsi512_ps(fours[2 * i + 1]);
    const __m512i twos = _mm512_max_epu16(_mm512_castps_si512(_mm512_shuffle_ps(first, second, 0x88)),
                                          _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0xDD)));
    ones[i] = _mm512_and_si512(_mm512_max_epu16(twos, _mm512_srli_epi32(twos, 16)), _mm512_set1_epi32(0xFFFF));
  }
  // 128 bits each for the first and second half of even blocks, then of odd ones, with a word for each vector.
  const __m512i halves = _mm512_packus_epi32(ones[0], ones[1]);
  const __m512i whole = _mm512_max_epu16(halves, _mm512_shuffle_i64x2(halves, halves, 0xB1));
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(_mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                                          0, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2,
                                                                          17, 1, 16, 0),
                                                         whole));
}

inline __m512 widened(__m256i words, WideBf16 /*type*/) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
inline __m512 widened(__m256i words, WideFp16 /*type*/) { return _mm512_cvtph_ps(words); }

// 16 e2m1 magnitudes, in the low four bits of each 32: e2m1_code, with the rounding constants looked up by exponent.
// They have the codes that lie below their power of two in their last bits, so that adding rounds and counts.
inline __m512i magnitude_codes(__m512 values) {
  const __m512 magic = _mm512_castsi512_ps(_mm512_set_epi32((127 + 22) << 23, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                            (129 + 22) << 23 | 4, (128 + 22) << 23 | 2));
  const __m512 magnitude = _mm512_range_ps(values, _mm512_set1_ps(kLargestElement), 0b1010);
  const __m512 at_least_one = _mm512_max_ps(magnitude, _mm512_set1_ps(1.0F));
  const __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(at_least_one), 23);  // 127 to 129
  return _mm512_castps_si512(_mm512_add_ps(magnitude, _mm512_permutexvar_ps(exponent, magic)));
}

// Chunks of 16 blocks that are done together, in three passes: what one chunk needs is a long chain of dependent
// instructions, and those of many overlap. 8 KiB of elements, which stay in the first-level cache.
constexpr int kGroup = 16;

// Up to kGroup chunks of a row. False, with nothing of use written, for what quantize_rows.h has to do.
template <typename Wide>
inline bool quantize_group(const __m512i* words,
                           int chunks,
                           float global_scale,
                           std::uint8_t* values,
                           std::uint8_t* scales) {
  constexpr int kVectors = kChunk / 2;  // of a chunk
  alignas(64) float largest[kGroup * kChunk];
  alignas(64) float element_scales[kGroup * kChunk];
  __mmask16 odd = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const __m256i bits = largest_magnitudes(words + chunk * kVectors);
    odd |= _mm256_cmpge_epi16_mask(bits, _mm256_set1_epi16(Wide::kInfinity));  // an infinity or a NaN among them
    _mm512_store_ps(largest + chunk * kChunk, widened(bits, Wide()));
  }
  if (odd != 0 || !(global_scale > 0.0F && global_scale < __builtin_inff())) [[unlikely]] {
    return false;
  }
  const int blocks = chunks * kChunk;
  for (int block = 0; block < blocks; ++block) {
    // scale_code and element_scale, without what NaNs and signs need. The division by six is a product with the nearest
    // number to a sixth and one correction, which gives the quotient correctly rounded (Markstein, "Computation of
    // elementary functions on the IBM RISC System/6000 processor", 1990, theorem 8.1), four times as fast.
    constexpr double kSixth = 1.0 / 6.0;
    const double product = static_cast<double>(global_scale) * static_cast<double>(largest[block]);
    const double near = product * kSixth;
    const double exact = __builtin_fma(__builtin_fma(-6.0, near, product), kSixth, near);
    const std::uint32_t code = e4m3_magnitude_code(static_cast<float>(exact < 448.0 ? exact : 448.0));
    scales[block] = static_cast<std::uint8_t>(code);
    element_scales[block] = largest[block] == 0.0F ? 0.0F : global_scale / e4m3_magnitude(code);
  }
  const __m512 infinity = _mm512_set1_ps(__builtin_inff());
  for (int chunk = 0; chunk < chunks; ++chunk) {
    odd |= _mm512_cmp_ps_mask(_mm512_load_ps(element_scales + chunk * kChunk), infinity, _CMP_NLT_UQ);
  }
  if (odd != 0) [[unlikely]] {
    return false;
  }
  for (int vector = 0; vector < chunks * kVectors; ++vector) {
    // What the next group reads and writes: the processor alone does not look that far ahead.
    __builtin_prefetch(words + vector + kGroup * kVectors);
    __builtin_prefetch(values + (vector + kGroup * kVectors) * 2 * kPairs, 1);
    const __m512i elements = _mm512_loadu_si512(words + vector);
    const __m512 scale = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_set1_ps(element_scales[2 * vector])),
                                            _mm256_set1_ps(element_scales[2 * vector + 1]), 1);
    const __m512i low = magnitude_codes(_mm512_mul_ps(Wide::even(elements), scale));
    const __m512i high = _mm512_slli_epi32(magnitude_codes(_mm512_mul_ps(Wide::odd(elements), scale)), 4);
    const __m512i signs = _mm512_and_si512(elements, _mm512_set1_epi32(static_cast<int>(0x80008000U)));
    // 0xFE: the three or'ed. Of each 32 bits the low byte counts, others are left as they come.
    const __m512i pairs = _mm512_ternarylogic_epi32(low, high, _mm512_srli_epi32(signs, 12), 0xFE);
    const __m512i whole = _mm512_or_si512(pairs, _mm512_srli_epi32(signs, 24));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + vector * 2 * kPairs), _mm512_cvtepi32_epi8(whole));
  }
  return true;
}

template <typename Wide>
void quantize_wide_rows(const QuantizeRows& rows, std::int64_t first, std::int64_t last) {
  using Narrow = typename Wide::Narrow;
  quantize_each(rows, first, last,
                [](const QuantizeRows& rows, std::int64_t row, std::int64_t block, std::int64_t count,
                   std::uint8_t* scales) {
                  const std::int64_t at = (row * (rows.columns / kBlock) + block) * kPairs;
                  const auto* input = static_cast<const typename Narrow::Pair*>(rows.input) + at;
                  const auto chunks = static_cast<int>(std::min<std::int64_t>(kGroup, count / kChunk));
                  if (chunks != 0 && quantize_group<Wide>(reinterpret_cast<const __m512i*>(input), chunks,
                                                          rows.global_scale[row * rows.global_scale_stride],
                                                          rows.values + at, scales)) {
                    return chunks * kChunk;
                  }
                  return quantize_some<Narrow>(rows, row, block, count, scales);
                });
}

void quantize_rows_avx512(const QuantizeRows& rows, std::int64_t first, std::int64_t last) {
  switch (rows.element) {
    case Element::bf16:
      return quantize_wide_rows<WideBf16>(rows, first, last);
    case Element::fp16:
      return quantize_wide_rows<WideFp16>(rows, first, last);
    default:
      return quantize_rows(rows, first, last);
  }
}

}  // namespace
}  // namespace dutyfree::nvfp4
