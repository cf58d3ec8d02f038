// What the threads of the CUDA kernels do, run here one after the other. Without torch, as nvfp4_format_test.cpp.
#include "nvfp4/cuda/blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace dutyfree::nvfp4::cuda {
namespace {

constexpr std::uint8_t kUnwritten = 0xAA;

// Bytes that start where a Word may.
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes) : words_(static_cast<std::size_t>(bytes) / sizeof(Word) + 1) {
    std::memset(words_.data(), kUnwritten, words_.size() * sizeof(Word));
  }
  std::uint8_t* data() { return reinterpret_cast<std::uint8_t*>(words_.data()); }
  std::uint8_t operator[](std::int64_t index) { return data()[index]; }
  template <typename T>
  T at(std::int64_t index) {
    T value;
    std::memcpy(&value, data() + index * static_cast<std::int64_t>(sizeof value), sizeof value);
    return value;
  }

 private:
  std::vector<Word> words_;
};

// A matrix of some type with what makes kernels go wrong among its elements, and the same as float32.
struct Matrix {
  Matrix(int dtype, std::int64_t rows, std::int64_t columns)
      : bytes(rows * columns * 4), elements(static_cast<std::size_t>(rows * columns)) {
    std::mt19937 random(static_cast<unsigned>(rows + columns));
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      float value = normal(random) * std::ldexp(1.0F, static_cast<int>(random() % 12) - 6);
      if (random() % 50 == 0) value = std::numeric_limits<float>::quiet_NaN();
      if (random() % 200 == 0) value = -std::numeric_limits<float>::infinity();
      if (i / kBlock % 7 == 3) value = 0.0F;
      const std::uint32_t bits = dtype == kDutyfreeFloat32    ? bits_of(value)
                                 : dtype == kDutyfreeFloat16  ? fp16_bits(value)
                                 : dtype == kDutyfreeBFloat16 ? bf16_bits(value)
                                                              : e4m3_code(value);
      elements[i] = dtype == kDutyfreeFloat32    ? value
                    : dtype == kDutyfreeFloat16  ? fp16_value(bits)
                    : dtype == kDutyfreeBFloat16 ? bf16_value(bits)
                                                 : e4m3_value(bits);
      const std::size_t size = dtype == kDutyfreeFloat32 ? 4 : (dtype == kDutyfreeFloat8E4M3 ? 1 : 2);
      std::memcpy(bytes.data() + i * size, &bits, size);
    }
  }
  Buffer bytes;
  std::vector<float> elements;
};

template <int kDtype, bool kSwizzled, typename Index>
void expect_quantized(std::int64_t rows, std::int64_t columns, bool scale_per_row) {
  const std::int64_t blocks = columns / kBlock;
  const std::int64_t factors = kSwizzled ? swizzled_size(rows, blocks) : rows * blocks;
  Matrix matrix(kDtype, rows, columns);
  std::vector<float> global_scales;
  for (std::int64_t row = 0; row <= rows; ++row) global_scales.push_back(20.0F + static_cast<float>(row));
  Buffer values(rows * columns / 2);
  Buffer scales(factors);
  const DutyfreeNvfp4Quantize call{
      .input = matrix.bytes.data(),
      .global_scale = global_scales.data(),
      .values = values.data(),
      .scale_factors = scales.data(),
      .rows = rows,
      .columns = columns,
      .stream = nullptr,
      .device = 0,
      .dtype = kDtype,
      .scale_per_row = scale_per_row,
      .swizzled = kSwizzled,
  };
  ASSERT_EQ(quantize_threads<kSwizzled>(call), factors);
  for (std::int64_t thread = 0; thread < factors; ++thread) {
    quantize_thread<kDtype, kSwizzled>(call, static_cast<Index>(thread));
  }

  std::vector<std::uint8_t> wanted(static_cast<std::size_t>(factors), 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float global_scale = global_scales[static_cast<std::size_t>(scale_per_row ? row : 0)];
    for (std::int64_t block = 0; block < blocks; ++block) {
      const float* elements = &matrix.elements[static_cast<std::size_t>(row * columns + block * kBlock)];
      float largest = 0.0F;
      for (int i = 0; i < kBlock; ++i) largest = std::fmax(largest, std::abs(elements[i]));
      const std::uint32_t scale = scale_code(global_scale, largest);
      const float factor = element_scale(global_scale, largest, scale);
      for (int i = 0; i < kBlock; i += 2) {
        const std::uint32_t pair = e2m1_code(elements[i] * factor) | e2m1_code(elements[i + 1] * factor) << 4;
        ASSERT_EQ(values[(row * columns + block * kBlock + i) / 2], pair) << row << ' ' << block << ' ' << i;
      }
      const std::int64_t offset = kSwizzled ? swizzled_offset(row, block, blocks) : row * blocks + block;
      wanted[static_cast<std::size_t>(offset)] = static_cast<std::uint8_t>(scale);
    }
  }
  for (std::int64_t i = 0; i < factors; ++i) ASSERT_EQ(scales[i], wanted[static_cast<std::size_t>(i)]) << i;
  // Nothing is written behind the end.
  EXPECT_EQ(values[rows * columns / 2], kUnwritten);
  EXPECT_EQ(scales[factors], kUnwritten);
}

template <int kDtype>
void expect_quantized() {
  for (const std::int64_t rows : {0, 1, 5, 128, 130}) {
    for (const std::int64_t columns : {16, 48, 64, 80}) {
      expect_quantized<kDtype, false, std::uint32_t>(rows, columns, false);
      expect_quantized<kDtype, true, std::uint32_t>(rows, columns, true);
      expect_quantized<kDtype, false, std::uint64_t>(rows, columns, true);
      expect_quantized<kDtype, true, std::uint64_t>(rows, columns, false);
    }
  }
}

TEST(Nvfp4CudaBlocks, quantizes_float32) { expect_quantized<kDutyfreeFloat32>(); }
TEST(Nvfp4CudaBlocks, quantizes_float16) { expect_quantized<kDutyfreeFloat16>(); }
TEST(Nvfp4CudaBlocks, quantizes_bfloat16) { expect_quantized<kDutyfreeBFloat16>(); }
TEST(Nvfp4CudaBlocks, quantizes_e4m3) { expect_quantized<kDutyfreeFloat8E4M3>(); }

template <int kDtype, bool kSwizzled>
void expect_dequantized(std::int64_t rows, std::int64_t columns, bool divides) {
  const std::int64_t blocks = columns / kBlock;
  const std::int64_t factors = kSwizzled ? swizzled_size(rows, blocks) : rows * blocks;
  Buffer values(rows * columns / 2);
  Buffer scales(factors);
  std::mt19937 random(3);
  for (std::int64_t i = 0; i < rows * columns / 2; ++i) values.data()[i] = static_cast<std::uint8_t>(random());
  for (std::int64_t i = 0; i < factors; ++i) scales.data()[i] = static_cast<std::uint8_t>(random() % 0x7F);
  std::vector<float> global_scales;
  for (std::int64_t row = 0; row <= rows; ++row) global_scales.push_back(0.3F + static_cast<float>(row));
  Buffer output(rows * columns * kElementSize<kDtype>);
  const DutyfreeNvfp4Dequantize call{
      .values = values.data(),
      .scale_factors = scales.data(),
      .global_scale = divides ? global_scales.data() : nullptr,
      .output = output.data(),
      .rows = rows,
      .columns = columns,
      .stream = nullptr,
      .device = 0,
      .dtype = kDtype,
      .scale_per_row = 1,
      .swizzled = kSwizzled,
  };
  for (std::int64_t thread = 0; thread < dequantize_threads(call); ++thread) {
    dequantize_thread<kDtype, kSwizzled>(call, static_cast<std::uint32_t>(thread));
  }
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const std::int64_t row = i / columns;
    const std::int64_t block = i % columns / kBlock;
    const std::int64_t offset = kSwizzled ? swizzled_offset(row, block, blocks) : row * blocks + block;
    float value = e2m1_value(values[i / 2] >> (i % 2 * 4) & 0xFU) * e4m3_value(scales[offset]);
    if (divides) value /= global_scales[static_cast<std::size_t>(row)];
    if constexpr (kDtype == kDutyfreeFloat32) {
      ASSERT_EQ(output.at<std::uint32_t>(i), bits_of(value)) << i;
    } else {
      const std::uint32_t wanted = kDtype == kDutyfreeFloat16 ? fp16_bits(value) : bf16_bits(value);
      ASSERT_EQ(output.at<std::uint16_t>(i), wanted) << i;
      const float read = kDtype == kDutyfreeFloat16 ? fp16_value(wanted) : bf16_value(wanted);
      if (!divides) {
        ASSERT_EQ(read, value) << i;  // nothing was lost
      }
    }
  }
  EXPECT_EQ(output[rows * columns * kElementSize<kDtype>], kUnwritten);
}

template <int kDtype>
void expect_dequantized() {
  for (const std::int64_t rows : {0, 1, 130}) {
    for (const std::int64_t columns : {16, 80}) {
      for (const bool divides : {false, true}) {
        expect_dequantized<kDtype, false>(rows, columns, divides);
        expect_dequantized<kDtype, true>(rows, columns, divides);
      }
    }
  }
}

TEST(Nvfp4CudaBlocks, dequantizes_to_float32) { expect_dequantized<kDutyfreeFloat32>(); }
TEST(Nvfp4CudaBlocks, dequantizes_to_float16) { expect_dequantized<kDutyfreeFloat16>(); }
TEST(Nvfp4CudaBlocks, dequantizes_to_bfloat16) { expect_dequantized<kDutyfreeBFloat16>(); }

}  // namespace
}  // namespace dutyfree::nvfp4::cuda
