// Compiled for AVX2 and FMA: vectors of half a panel.
#include "nvfp4/kernels.h"

#include <immintrin.h>

#include "nvfp4/gemm_int8.h"
#include "nvfp4/quantize_rows.h"

namespace dutyfree::nvfp4 {
namespace {

struct Avx2 {
  static constexpr int kRows = 4;
  static constexpr int kPanels = 1;
  struct Floats {
    __m256 halves[2];
  };
  struct Codes {
    __m256i quarters[4][2];  // quarter q: for each column, elements 4q to 4q + 3
  };

  static Floats zero() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
  static void store(float* out, const Floats& values) {
    _mm256_storeu_ps(out, values.halves[0]);
    _mm256_storeu_ps(out + 8, values.halves[1]);
  }

  static Codes codes(const std::uint8_t* packed) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kOffsetCodes)));
    const __m256i low = _mm256_set1_epi8(15);
    Codes codes;
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed + part * 64 + half * 32));
        codes.quarters[2 * part][half] = _mm256_shuffle_epi8(table, _mm256_and_si256(pairs, low));
        codes.quarters[2 * part + 1][half] =
            _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(pairs, 4), low));
      }
    }
    return codes;
  }

  static Floats scales(const std::uint16_t* packed) {
    Floats scales;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + 8 * half));
      scales.halves[half] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
    }
    return scales;
  }

  static void add(Floats& sums,
                  const Codes& weight,
                  const std::int8_t* activations,
                  std::int32_t start,
                  const Floats& scale,
                  float activation_scale) {
    const auto* fours = reinterpret_cast<const std::int32_t*>(activations);
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      // At most 24 * 12 * 2 = 576 in each of the four, so that 16 bits hold their sum.
      __m256i pairs = _mm256_maddubs_epi16(weight.quarters[0][half], _mm256_set1_epi32(fours[0]));
#pragma GCC unroll 3
      for (int quarter = 1; quarter < 4; ++quarter) {
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(weight.quarters[quarter][half],
                                                             _mm256_set1_epi32(fours[quarter])));
      }
      const __m256i products = _mm256_add_epi32(_mm256_madd_epi16(pairs, ones), _mm256_set1_epi32(start));
      sums.halves[half] =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(products),
                          _mm256_mul_ps(scale.halves[half], _mm256_set1_ps(activation_scale)), sums.halves[half]);
    }
  }
};

bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

}  // namespace

const Kernels avx2_kernels = {
    "avx2", &supported, &quantize_rows, &int8_activation_bytes, &pack_int8_activations, &int8_gemm<Avx2>, &no_scratch};

}  // namespace dutyfree::nvfp4
