// Compiled for AVX-512 with VNNI: whole-vector products of bytes.
#include "nvfp4/kernels.h"

#include <immintrin.h>

#include "nvfp4/avx512/quantize.h"
#include "nvfp4/gemm_int8.h"

namespace dutyfree::nvfp4 {
namespace {

struct Vnni {
  static constexpr int kRows = 8;
  static constexpr int kPanels = 2;
  using Floats = __m512;
  struct Codes {
    __m512i quarters[4];  // quarter q: for each column, elements 4q to 4q + 3
  };

  static Floats zero() { return _mm512_setzero_ps(); }
  static void store(float* out, Floats values) { _mm512_storeu_ps(out, values); }

  static Codes codes(const std::uint8_t* packed) {
    const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kOffsetCodes)));
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i first = _mm512_loadu_si512(packed);
    const __m512i second = _mm512_loadu_si512(packed + 64);
    return {{_mm512_shuffle_epi8(table, _mm512_and_si512(first, low)),
             _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(first, 4), low)),
             _mm512_shuffle_epi8(table, _mm512_and_si512(second, low)),
             _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(second, 4), low))}};
  }

  static Floats scales(const std::uint16_t* packed) {
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }

  static void add(Floats& sums,
                  const Codes& weight,
                  const std::int8_t* activations,
                  std::int32_t start,
                  Floats scale,
                  float activation_scale) {
    __m512i products = _mm512_set1_epi32(start);
    const auto* fours = reinterpret_cast<const std::int32_t*>(activations);
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter) {
      products = _mm512_dpbusd_epi32(products, weight.quarters[quarter], _mm512_set1_epi32(fours[quarter]));
    }
    sums = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), _mm512_mul_ps(scale, _mm512_set1_ps(activation_scale)), sums);
  }
};

bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

}  // namespace

const Kernels avx512_vnni_kernels = {
    "avx512_vnni",    &supported, &quantize_rows_avx512, &int8_activation_bytes, &pack_int8_activations,
    &int8_gemm<Vnni>, &no_scratch};

}  // namespace dutyfree::nvfp4
