// Without torch, so that scripts/check_aarch64.sh can build it for another machine.
#include "nvfp4/format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace dutyfree::nvfp4 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The value of a floating point code from the definition: `exponent_bits` and `mantissa_bits` below a sign, no
// infinities.
double defined_value(unsigned code, int exponent_bits, int mantissa_bits) {
  const unsigned magnitude = code & ((1U << (exponent_bits + mantissa_bits)) - 1);
  const int exponent = static_cast<int>(magnitude >> mantissa_bits);
  const int mantissa = static_cast<int>(magnitude & ((1U << mantissa_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                     : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (code >> (exponent_bits + mantissa_bits) & 1U) != 0 ? -value : value;
}

// The magnitudes of all codes from 0, in order.
std::vector<double> magnitudes(unsigned count, int exponent_bits, int mantissa_bits) {
  std::vector<double> values;
  for (unsigned code = 0; code < count; ++code) values.push_back(defined_value(code, exponent_bits, mantissa_bits));
  return values;
}
std::vector<double> e2m1() { return magnitudes(8, 2, 1); }
std::vector<double> e4m3() { return magnitudes(0x7F, 4, 3); }

// The nearest of `values`, by looking at all of them; of two that are as near, the one with the even code. Within their
// range, floats and these values are so short that the differences are exact where they decide.
unsigned nearest(const std::vector<double>& values, float magnitude) {
  const double within = std::min<double>(magnitude, values.back());
  unsigned best = 0;
  for (unsigned code = 1; code < values.size(); ++code) {
    const double closer = std::abs(values[best] - within) - std::abs(values[code] - within);
    if (closer > 0 || (closer == 0 && code % 2 == 0)) best = code;
  }
  return best;
}

// What decides: every value, every middle between two of them, the floats beside those, both ends of float32.
std::vector<float> deciding_floats(const std::vector<double>& values) {
  std::vector<float> floats = {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
                               std::numeric_limits<float>::max()};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double next = i + 1 < values.size() ? values[i + 1] : 2 * values[i] - values[i - 1];
    for (const double value : {values[i], (values[i] + next) / 2}) {
      const auto exact = static_cast<float>(value);
      EXPECT_EQ(exact, value);
      for (const float beside : {exact, std::nextafter(exact, 0.0F), std::nextafter(exact, kInfinity)}) {
        floats.push_back(beside);
      }
    }
  }
  return floats;
}

// Floats of all magnitudes, and as many in the range of the values.
std::vector<float> random_floats(float largest, int count) {
  std::mt19937 random(20);
  std::uniform_real_distribution<float> within(0.0F, 1.25F * largest);
  std::vector<float> floats;
  for (int i = 0; i < count; ++i) {
    const float any = float_of(static_cast<std::uint32_t>(random()) & 0x7FFFFFFFU);
    if (std::isfinite(any)) floats.push_back(any);
    floats.push_back(within(random));
  }
  return floats;
}

TEST(Nvfp4Format, e2m1_values_are_the_format_s) {
  for (unsigned code = 0; code < 16; ++code) {
    EXPECT_EQ(e2m1_value(code), defined_value(code, 2, 1)) << code;
    EXPECT_EQ(doubled_e2m1(code), 2 * defined_value(code, 2, 1)) << code;
    EXPECT_EQ(std::signbit(e2m1_value(code)), code >= 8) << code;
    EXPECT_EQ(e2m1_code(e2m1_value(code)), code);
  }
}

TEST(Nvfp4Format, e2m1_code_is_the_nearest) {
  const auto values = e2m1();
  auto floats = deciding_floats(values);
  for (const float value : random_floats(kLargestElement, 200000)) floats.push_back(value);
  for (const float value : floats) {
    ASSERT_EQ(e2m1_code(value), nearest(values, value)) << value;
    ASSERT_EQ(e2m1_code(-value), nearest(values, value) | 8U) << value;
  }
}

TEST(Nvfp4Format, e2m1_ties_go_to_the_even_code) {
  const float ties[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const float rounded[] = {0.0F, 1.0F, 1.0F, 2.0F, 2.0F, 4.0F, 4.0F};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(e2m1_value(e2m1_code(ties[i])), rounded[i]) << ties[i];
}

TEST(Nvfp4Format, e2m1_saturates_and_takes_nan_for_plus_six) {
  EXPECT_EQ(e2m1_code(kInfinity), 7U);
  EXPECT_EQ(e2m1_code(-kInfinity), 15U);
  EXPECT_EQ(e2m1_code(kNaN), 7U);
  EXPECT_EQ(e2m1_code(-kNaN), 7U);
  EXPECT_EQ(e2m1_code(-0.0F), 8U);
}

TEST(Nvfp4Format, e4m3_values_are_the_format_s) {
  for (unsigned code = 0; code < 256; ++code) {
    if ((code & 0x7FU) == 0x7F) {
      EXPECT_TRUE(std::isnan(e4m3_value(code)));
      EXPECT_EQ(e4m3_code(e4m3_value(code)), 0x7FU);
    } else {
      EXPECT_EQ(e4m3_value(code), defined_value(code, 4, 3)) << code;
      EXPECT_EQ(e4m3_code(e4m3_value(code)), code);
    }
  }
}

TEST(Nvfp4Format, e4m3_code_is_the_nearest) {
  const auto values = e4m3();
  auto floats = deciding_floats(values);
  for (const float value : random_floats(kLargestScale, 30000)) floats.push_back(value);
  for (const float value : floats) {
    ASSERT_EQ(e4m3_code(value), nearest(values, value)) << value;
    ASSERT_EQ(e4m3_code(-value), nearest(values, value) | 0x80U) << value;
  }
}

TEST(Nvfp4Format, e4m3_saturates_and_keeps_nan) {
  EXPECT_EQ(e4m3_code(kInfinity), 0x7EU);
  EXPECT_EQ(e4m3_code(-kInfinity), 0xFEU);
  EXPECT_EQ(e4m3_code(464.0F), 0x7EU);
  EXPECT_EQ(e4m3_code(kNaN), 0x7FU);
}

TEST(Nvfp4Format, all_fp16_and_bf16_numbers) {
  for (unsigned code = 0; code < 0x10000; ++code) {
    ASSERT_EQ(std::signbit(fp16_value(code)), code >= 0x8000U) << code;
    if ((code & 0x7C00U) != 0x7C00U) {
      ASSERT_EQ(fp16_value(code), defined_value(code, 5, 10)) << code;
    }
    if ((code & 0x7F80U) != 0x7F80U) {
      ASSERT_EQ(bf16_value(code), defined_value(code, 8, 7)) << code;
    }
  }
  EXPECT_EQ(fp16_value(0x7C00U), kInfinity);
  EXPECT_EQ(fp16_value(0xFC00U), -kInfinity);
  EXPECT_EQ(bf16_value(0x7F80U), kInfinity);
  for (unsigned mantissa = 1; mantissa < 0x400; ++mantissa) ASSERT_TRUE(std::isnan(fp16_value(0x7C00U | mantissa)));
  for (unsigned mantissa = 1; mantissa < 0x80; ++mantissa) ASSERT_TRUE(std::isnan(bf16_value(0x7F80U | mantissa)));
}

// All codes, the middles between them and the floats beside those.
TEST(Nvfp4Format, rounds_to_the_nearest_fp16_and_bf16) {
  const auto expect = [](auto code_of, auto value_of, std::uint32_t infinity) {
    for (std::uint32_t code = 0; code < infinity; ++code) {
      ASSERT_EQ(code_of(value_of(code)), code);
      ASSERT_EQ(code_of(-value_of(code)), code | 0x8000U);
      // As if there were another number above the last: that is where infinity begins.
      const double next = code + 1 < infinity ? value_of(code + 1) : 2.0 * value_of(code) - value_of(code - 1);
      const auto middle = static_cast<float>((value_of(code) + next) / 2);
      ASSERT_EQ(code_of(middle), code + code % 2) << code;
      ASSERT_EQ(code_of(std::nextafter(middle, 0.0F)), code);
      ASSERT_EQ(code_of(std::nextafter(middle, std::numeric_limits<float>::infinity())), code + 1);
    }
    ASSERT_EQ(code_of(std::numeric_limits<float>::infinity()), infinity);
    ASSERT_GT(code_of(std::numeric_limits<float>::quiet_NaN()), infinity);
  };
  expect([](float value) { return fp16_bits(value); }, [](std::uint32_t code) { return fp16_value(code); }, 0x7C00U);
  expect([](float value) { return bf16_bits(value); }, [](std::uint32_t code) { return bf16_value(code); }, 0x7F80U);
}

TEST(Nvfp4Format, products_of_codes_and_scale_factors_are_exact_in_bf16_and_fp16) {
  for (unsigned scale = 0; scale < 0x7F; ++scale) {
    for (unsigned code = 0; code < 16; ++code) {
      const float product = e2m1_value(code) * e4m3_value(scale);
      ASSERT_EQ(bits_of(product) & 0xFFFFU, 0U) << scale << ' ' << code;
      // fp16 has more digits than bf16, in a range that these are far within.
      if (product != 0.0F) {
        ASSERT_GE(std::abs(product), 0x1p-10F);
        ASSERT_LE(std::abs(product), 2688.0F);
      }
    }
  }
}

TEST(Nvfp4Format, a_scale_factor_brings_the_largest_element_to_six) {
  for (const float largest : {1e-30F, 0.01F, 1.0F, 3.7F, 1e30F}) {
    const float global_scale = static_cast<float>(448.0 * 6.0 / largest);
    EXPECT_EQ(e4m3_value(scale_code(global_scale, largest)), 448.0F) << largest;
  }
  const auto values = e4m3();
  for (const float largest : random_floats(10.0F, 2000)) {
    const auto wanted = static_cast<float>(static_cast<double>(largest) * 100.0 / 6.0);
    ASSERT_EQ(scale_code(100.0F, largest), nearest(values, wanted)) << largest;
  }
}

TEST(Nvfp4Format, blocks_without_a_scale_factor) {
  EXPECT_EQ(scale_code(1.0F, 0.0F), 0U);
  EXPECT_EQ(element_scale(1.0F, 0.0F, 0), 0.0F);
  // Too small for the smallest scale factor: codes are ±6, and are read as zero.
  EXPECT_EQ(scale_code(1.0F, 1e-4F), 0U);
  EXPECT_EQ(element_scale(1.0F, 1e-4F, 0), kInfinity);
  EXPECT_EQ(scale_code(1.0F, kInfinity), 0x7EU);
  EXPECT_EQ(scale_code(kNaN, 1.0F), 0x7FU);
}

// The layout as its definition tells it: tile after tile, in each the 32 rows of a quarter, of each the four quarters'.
TEST(Nvfp4Format, swizzled_offsets_count_through_tiles) {
  for (const std::int64_t rows : {1, 128, 129, 300}) {
    for (const std::int64_t blocks : {1, 3, 4, 9}) {
      std::int64_t offset = 0;
      for (std::int64_t row_tile = 0; row_tile < (rows + 127) / 128; ++row_tile) {
        for (std::int64_t block_tile = 0; block_tile < (blocks + 3) / 4; ++block_tile) {
          for (std::int64_t row = 0; row < 32; ++row) {
            for (std::int64_t quarter = 0; quarter < 4; ++quarter) {
              for (std::int64_t block = 0; block < 4; ++block) {
                const std::int64_t m = row_tile * 128 + quarter * 32 + row;
                ASSERT_EQ(swizzled_offset(m, block_tile * 4 + block, blocks), offset++);
              }
            }
          }
        }
      }
      EXPECT_EQ(swizzled_size(rows, blocks), offset);
    }
  }
  EXPECT_EQ(swizzled_size(0, 4), 0);
}

}  // namespace
}  // namespace dutyfree::nvfp4
