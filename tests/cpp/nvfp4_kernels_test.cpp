// The inner loops of this machine's targets against plain ones in double precision. Without torch, as
// nvfp4_format_test.cpp: on another kind of machine the portable target is the one that there is.
#include "nvfp4/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "nvfp4/format.h"

namespace dutyfree::nvfp4 {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::vector<const Kernels*> targets() {
  std::vector<const Kernels*> found = {&portable_kernels};
#if defined(__x86_64__)
  for (const Kernels* target : {&avx2_kernels, &avx512_vnni_kernels, &avx512_bf16_kernels}) {
    if (target->supported()) found.push_back(target);
  }
#endif
  return found;
}

// The bits of a number that a type holds exactly, as memory has them: found by looking at all codes.
std::uint32_t exact_bits(Element element, float value) {
  if (element == Element::fp32) return bits_of(value);
  if (element == Element::bf16) return bits_of(value) >> 16;
  if (element == Element::e4m3) return e4m3_code(value);
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    if (bits_of(fp16_value(code)) == bits_of(value)) return code;
  }
  return 0x7E00;
}

float value_of(Element element, const std::uint8_t* memory, std::int64_t index) {
  std::uint32_t bits = 0;
  const std::int64_t size = element == Element::fp32 ? 4 : (element == Element::e4m3 ? 1 : 2);
  std::memcpy(&bits, memory + index * size, static_cast<std::size_t>(size));
  switch (element) {
    case Element::bf16:
      return bf16_value(bits);
    case Element::fp16:
      return fp16_value(bits);
    case Element::e4m3:
      return e4m3_value(bits);
    default:
      return float_of(bits);
  }
}

// Of a few numbers that all types have, so that their bits need be found only once.
Bytes random_elements(Element element, std::int64_t count) {
  const float choices[] = {0.0F,       -0.0F,  0.5F,          -1.75F,       3.0F, 11.0F,
                           -0.015625F, 208.0F, std::nanf(""), 0.001953125F, -6.5F};
  std::vector<std::uint32_t> bits;
  for (const float choice : choices) bits.push_back(exact_bits(element, choice));
  const std::size_t size = element == Element::fp32 ? 4 : (element == Element::e4m3 ? 1 : 2);
  Bytes memory(static_cast<std::size_t>(count) * size);
  std::mt19937 random(11);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    // Every seventh block is zero.
    std::memcpy(&memory[i * size], &bits[i / kBlock % 7 == 2 ? 0 : random() % bits.size()], size);
  }
  return memory;
}

void expect_quantized(const Kernels& target, Element element, std::int64_t rows, std::int64_t columns, bool swizzled) {
  const std::int64_t blocks = columns / kBlock;
  const Bytes input = random_elements(element, rows * columns);
  const std::vector<float> global_scales = {3.0F, 100.0F, 7e-4F};
  Bytes values(static_cast<std::size_t>(rows * columns / 2), 0xAA);
  Bytes scales(static_cast<std::size_t>(swizzled ? swizzled_size(rows, blocks) : rows * blocks), 0xAA);
  target.quantize_rows({.input = input.data(),
                        .element = element,
                        .columns = columns,
                        .global_scale = global_scales.data(),
                        .global_scale_stride = 1,
                        .values = values.data(),
                        .scale_factors = scales.data(),
                        .swizzled = swizzled},
                       0, rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float global_scale = global_scales[static_cast<std::size_t>(row)];
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t start = row * columns + block * kBlock;
      float largest = 0.0F;
      for (int i = 0; i < kBlock; ++i) {
        largest = std::fmax(largest, std::abs(value_of(element, input.data(), start + i)));
      }
      const std::uint32_t scale = scale_code(global_scale, largest);
      const float factor = element_scale(global_scale, largest, scale);
      const std::int64_t offset = swizzled ? swizzled_offset(row, block, blocks) : row * blocks + block;
      ASSERT_EQ(scales[static_cast<std::size_t>(offset)], scale) << target.name << ' ' << row << ' ' << block;
      for (std::int64_t i = start; i < start + kBlock; ++i) {
        const std::uint32_t code = values[static_cast<std::size_t>(i / 2)] >> (i % 2 * 4) & 0xFU;
        ASSERT_EQ(code, e2m1_code(value_of(element, input.data(), i) * factor)) << target.name << ' ' << i;
      }
    }
  }
}

TEST(Nvfp4Kernels, quantize_every_type_in_both_layouts) {
  for (const Kernels* target : targets()) {
    for (const Element element : {Element::bf16, Element::fp16, Element::e4m3, Element::fp32}) {
      for (const std::int64_t columns : {16, 48, 256, 272, 1040}) {
        expect_quantized(*target, element, 3, columns, false);
        expect_quantized(*target, element, 3, columns, true);
      }
    }
  }
}

// A matrix as the operators take it: codes, and scale factors in the swizzled layout.
struct Quantized {
  Quantized(std::int64_t rows, std::int64_t blocks, std::mt19937& random)
      : rows(rows),
        blocks(blocks),
        values(static_cast<std::size_t>(rows * blocks * kBlock / 2)),
        scales(static_cast<std::size_t>(swizzled_size(rows, blocks))) {
    for (std::uint8_t& pair : values) pair = static_cast<std::uint8_t>(random());
    // 2^-3 to 2^2, and now and then zero.
    for (std::uint8_t& scale : scales)
      scale = random() % 20 == 0 ? 0 : static_cast<std::uint8_t>(0x20 + random() % 0x28);
  }
  double at(std::int64_t row, std::int64_t column) const {
    const std::int64_t index = row * blocks * kBlock + column;
    const unsigned code = values[static_cast<std::size_t>(index / 2)] >> (index % 2 * 4) & 0xFU;
    const auto offset = static_cast<std::size_t>(swizzled_offset(row, column / kBlock, blocks));
    return static_cast<double>(e2m1_value(code)) * e4m3_value(scales[offset]);
  }
  std::int64_t rows;
  std::int64_t blocks;
  Bytes values;
  Bytes scales;
};

struct Free {
  void operator()(std::byte* memory) const { operator delete[](memory, std::align_val_t(64)); }
};
std::unique_ptr<std::byte[], Free> memory_of(std::int64_t bytes) {
  return std::unique_ptr<std::byte[], Free>(new (std::align_val_t(64)) std::byte[static_cast<std::size_t>(bytes) + 1]);
}

// The product by a target, in the type's bits.
Bytes product_of(const Kernels& target,
                 const Quantized& act,
                 const Quantized& weight,
                 Element element,
                 float alpha,
                 const float* bias) {
  const std::int64_t blocks = act.blocks;
  const std::int64_t panels = (weight.rows + kPanel - 1) / kPanel;
  const auto codes = memory_of(panels * blocks * kPanelBlock);
  const auto scales = memory_of(panels * blocks * kPanel * 2);
  auto* packed_codes = reinterpret_cast<std::uint8_t*>(codes.get());
  auto* packed_scales = reinterpret_cast<std::uint16_t*>(scales.get());
  pack_weight(weight.values.data(), weight.scales.data(), weight.rows, packed_codes, packed_scales, blocks, 0, panels);
  const auto activations = memory_of(act.rows * target.activation_bytes(blocks));
  const auto scratch = memory_of(target.scratch_bytes(blocks));
  Bytes out(static_cast<std::size_t>(act.rows * weight.rows) * (element == Element::fp32 ? 4 : 2));
  const Gemm gemm{
      .values = act.values.data(),
      .scale_factors = act.scales.data(),
      .first_row = 0,
      .rows = act.rows,
      .weight = {.codes = packed_codes, .scales = packed_scales, .panels = panels, .blocks = blocks},
      .activations = activations.get(),
      .alpha = alpha,
      .bias = bias,
      .out = out.data(),
      .element = element,
      .columns = weight.rows,
  };
  target.pack_activations(gemm, 0, act.rows);
  target.gemm(gemm, 0, panels, scratch.get());
  return out;
}

void expect_product(const Kernels& target,
                    Element element,
                    std::int64_t m,
                    std::int64_t n,
                    std::int64_t blocks,
                    bool biased) {
  std::mt19937 random(static_cast<unsigned>(m + n + blocks));
  const Quantized act(m, blocks, random);
  const Quantized weight(n, blocks, random);
  std::vector<float> bias(static_cast<std::size_t>(n));
  for (float& value : bias) value = static_cast<float>(random() % 64) - 32.0F;
  const float alpha = 0.37F;
  const Bytes out = product_of(target, act, weight, element, alpha, biased ? bias.data() : nullptr);

  // Half the distance between neighbours of the result's type, relative to it, and a rounding of float32 for each
  // block.
  const double of_type = element == Element::fp32 ? 0x1p-24 : (element == Element::fp16 ? 0x1p-11 : 0x1p-8);
  for (std::int64_t row = 0; row < m; ++row) {
    for (std::int64_t column = 0; column < n; ++column) {
      double sum = 0;
      double magnitude = 0;
      for (std::int64_t k = 0; k < blocks * kBlock; ++k) {
        const double product = act.at(row, k) * weight.at(column, k);
        sum += product;
        magnitude += std::abs(product);
      }
      const double offset = biased ? bias[static_cast<std::size_t>(column)] : 0.0;
      const double wanted = sum * static_cast<double>(alpha) + offset;
      const double of_float32 = 0x1p-23 * static_cast<double>(blocks + 4);
      ASSERT_NEAR(value_of(element, out.data(), row * n + column), wanted,
                  std::abs(wanted) * of_type + (magnitude + std::abs(offset)) * of_float32)
          << target.name << ' ' << row << ' ' << column;
    }
  }
}

TEST(Nvfp4Kernels, multiply_as_a_plain_loop_does) {
  for (const Kernels* target : targets()) {
    for (const std::int64_t m : {1, 2, 7, 19}) {
      for (const std::int64_t n : {1, 16, 33, 80}) {
        for (const std::int64_t blocks : {1, 4, 9}) {
          expect_product(*target, Element::bf16, m, n, blocks, false);
          expect_product(*target, Element::fp32, m, n, blocks, true);
          expect_product(*target, Element::fp16, m, n, blocks, true);
        }
      }
    }
  }
}

// All codes 6 or -6, with the largest scale factors.
TEST(Nvfp4Kernels, the_largest_sums_are_exact) {
  for (const Kernels* target : targets()) {
    for (const std::uint8_t codes : {0x77, 0xFF}) {
      std::mt19937 random(1);
      Quantized act(1, 2, random);
      Quantized weight(16, 2, random);
      std::fill(act.values.begin(), act.values.end(), codes);
      std::fill(weight.values.begin(), weight.values.end(), std::uint8_t{0x77});
      std::fill(act.scales.begin(), act.scales.end(), std::uint8_t{0x7E});
      std::fill(weight.scales.begin(), weight.scales.end(), std::uint8_t{0x7E});
      const Bytes out = product_of(*target, act, weight, Element::fp32, 1.0F, nullptr);
      const float wanted = (codes == 0xFF ? -32.0F : 32.0F) * 36.0F * 448.0F * 448.0F;
      for (int i = 0; i < 16; ++i) ASSERT_EQ(value_of(Element::fp32, out.data(), i), wanted) << target->name;
    }
  }
}

}  // namespace
}  // namespace dutyfree::nvfp4
