#pragma once

#include <cstdint>

// NVFP4 as numbers: two e2m1 codes a byte, one e4m3 scale factor for 16 of them along a row, one float32 global scale
// for a tensor. For the host and for CUDA, without torch.
//
// Every function is forced inline and has internal linkage: the same source is compiled for several instruction sets,
// and the linker must never give one file's code to another.
#if defined(__CUDACC__)
#define DUTYFREE_NVFP4_FUNCTION __host__ __device__ __forceinline__ static
#else
#define DUTYFREE_NVFP4_FUNCTION [[gnu::always_inline]] static inline
#endif

namespace dutyfree::nvfp4 {

// Elements that share a scale factor.
constexpr int kBlock = 16;
// The largest magnitudes of e2m1 and e4m3. A global scale of kLargestElement * kLargestScale / amax uses both ranges.
constexpr float kLargestElement = 6.0F;
constexpr float kLargestScale = 448.0F;

// Not memcpy, which keeps the compiler from vectorising what is around it.
DUTYFREE_NVFP4_FUNCTION std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
DUTYFREE_NVFP4_FUNCTION float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

// The value of an e2m1 code, times two, which makes it an integer: 0, 1, 2, 3, 4, 6, 8, 12. Bit 3 is the sign.
DUTYFREE_NVFP4_FUNCTION int doubled_e2m1(unsigned code) {
  const unsigned magnitude = code & 7U;
  const int value = static_cast<int>(magnitude < 5 ? magnitude : (magnitude == 5 ? 6 : (magnitude == 6 ? 8 : 12)));
  return (code & 8U) != 0 ? -value : value;
}
// The same as a float; -0.0 for code 8.
DUTYFREE_NVFP4_FUNCTION float e2m1_value(unsigned code) {
  const float magnitude = 0.5F * static_cast<float>(doubled_e2m1(code & 7U));
  return float_of(bits_of(magnitude) | (code & 8U) << 28);
}

// The nearest e2m1 code, ties to the even one, saturated at 6; +6 for a NaN, as CUDA's conversion has it.
DUTYFREE_NVFP4_FUNCTION std::uint32_t e2m1_code(float value) {
  const std::uint32_t bits = bits_of(value);
  const float given = float_of(bits & 0x7FFFFFFFU);
  const float magnitude = given < kLargestElement ? given : kLargestElement;  // false for a NaN
  // Codes are a half apart below 2, one apart below 4 and two apart above: half the power of two below the magnitude,
  // but no less than a half. A float that is 2^22 times that power has this distance in its last bit, so adding it
  // rounds as is wanted, and leaves the number of steps in the last bits.
  const float at_least_one = magnitude > 1.0F ? magnitude : 1.0F;
  const std::uint32_t power = bits_of(at_least_one) & 0x7F800000U;
  const std::uint32_t steps = bits_of(magnitude + float_of(power + (22U << 23))) & 7U;
  const std::uint32_t code = steps + (power >> 22) - 2U * 127U;  // two codes for each power of two above one
  const std::uint32_t sign = value == value ? (bits >> 28) & 8U : 0U;
  return code | sign;
}

// The value of an e4m3 code from 0 to 0x7E: no sign, no NaN.
DUTYFREE_NVFP4_FUNCTION float e4m3_magnitude(std::uint32_t code) {
  // Exponent 0 has no hidden one: give it one, and take it off again.
  const float subnormal = float_of((code << 20) + (121U << 23)) - 0x1p-6F;
  const float normal = float_of((code << 20) + (120U << 23));
  return code < 8 ? subnormal : normal;
}

DUTYFREE_NVFP4_FUNCTION float e4m3_value(std::uint32_t code) {
  const std::uint32_t magnitude = code & 0x7FU;
  const std::uint32_t bits = magnitude == 0x7F ? 0x7FC00000U : bits_of(e4m3_magnitude(magnitude));
  return float_of(bits | (code & 0x80U) << 24);
}

// The nearest e4m3 code for a number from 0 to 448, ties to the even one.
DUTYFREE_NVFP4_FUNCTION std::uint32_t e4m3_magnitude_code(float magnitude) {
  const std::uint32_t bits = bits_of(magnitude);
  const std::uint32_t normal = ((bits + 0x7FFFFU + ((bits >> 20) & 1U)) >> 20) - (120U << 3);
  const std::uint32_t subnormal =
      bits_of(magnitude + 0x1p14F) & 0xFU;  // 2^14 has 2^-9, the smallest e4m3, as its last bit
  return magnitude < 0x1p-6F ? subnormal : normal;
}

// The nearest e4m3 code, ties to the even one, saturated at 448; a NaN stays one.
DUTYFREE_NVFP4_FUNCTION std::uint32_t e4m3_code(float value) {
  const std::uint32_t bits = bits_of(value);
  const float given = float_of(bits & 0x7FFFFFFFU);
  const std::uint32_t code = e4m3_magnitude_code(given < kLargestScale ? given : kLargestScale);
  return value == value ? code | ((bits >> 24) & 0x80U) : 0x7FU;
}

DUTYFREE_NVFP4_FUNCTION float bf16_value(std::uint32_t bits) { return float_of(bits << 16); }

DUTYFREE_NVFP4_FUNCTION float fp16_value(std::uint32_t bits) {
  const std::uint32_t magnitude = (bits & 0x7FFFU) << 13;
  const std::uint32_t exponent = magnitude & (0x7C00U << 13);
  const std::uint32_t normal = magnitude + (112U << 23);
  const std::uint32_t special = magnitude + (224U << 23);
  const std::uint32_t subnormal = bits_of(float_of(magnitude + (113U << 23)) - 0x1p-14F);
  const std::uint32_t wide = exponent == 0 ? subnormal : (exponent == (0x7C00U << 13) ? special : normal);
  return float_of(wide | (bits & 0x8000U) << 16);
}

// The nearest bf16 and fp16, ties to the even one. (gcc 12 has no type for fp16 in C++ but on x86.)
DUTYFREE_NVFP4_FUNCTION std::uint32_t bf16_bits(float value) {
  const std::uint32_t bits = bits_of(value);
  return value == value ? (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16 : 0x7FC0U;
}

DUTYFREE_NVFP4_FUNCTION std::uint32_t fp16_bits(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  // A half has 2^-24, the smallest fp16, as its last bit.
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
  const std::uint32_t normal = ((magnitude + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13) - (112U << 10);
  const std::uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
  const std::uint32_t infinite = magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U;
  return (magnitude < 0x47800000U ? finite : infinite) | ((bits >> 16) & 0x8000U);
}

// The scale factor of a block whose largest magnitude is `largest`, NaNs left out. In double precision, where the
// product is exact, so that what decides is the rounding to float32 and then to e4m3.
DUTYFREE_NVFP4_FUNCTION std::uint32_t scale_code(float global_scale, float largest) {
  const double exact = static_cast<double>(global_scale) * static_cast<double>(largest) / 6.0;
  return e4m3_code(static_cast<float>(exact < 448.0 || exact != exact ? exact : 448.0));
}

// What the elements of such a block are multiplied with before they are rounded. Where the scale factor came out as
// zero that is an infinity: elements become ±6, and read as zero, since the scale factor is zero.
DUTYFREE_NVFP4_FUNCTION float element_scale(float global_scale, float largest, std::uint32_t scale) {
  return largest == 0.0F ? 0.0F : global_scale / e4m3_value(scale);
}

// Where the scale factor of row m and block k lies in the layout that matrix units read: tiles of 128 rows and 4
// blocks, in which rows m, m + 32, m + 64 and m + 96 are neighbours.
DUTYFREE_NVFP4_FUNCTION std::int64_t swizzled_offset(std::int64_t m, std::int64_t k, std::int64_t blocks) {
  return ((m / 128) * ((blocks + 3) / 4) + k / 4) * 512 + (m % 32) * 16 + ((m % 128) / 32) * 4 + k % 4;
}
// Bytes of that layout for a matrix of `rows` and `blocks`, with what pads both.
template <typename Int>
DUTYFREE_NVFP4_FUNCTION Int swizzled_size(const Int& rows, const Int& blocks) {
  return (rows + 127) / 128 * 128 * ((blocks + 3) / 4 * 4);
}

}  // namespace dutyfree::nvfp4
