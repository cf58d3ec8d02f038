#include "nvfp4/quantize.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "autotune/host.h"
#include "nvfp4/checks.h"
#include "nvfp4/format.h"
#include "nvfp4/target.h"
#include "nvfp4/tensors.h"
#include "torch_compat/empty.h"
#include "torch_compat/parallel.h"

namespace dutyfree::nvfp4 {
namespace {

using torch_compat::parallel;

// Elements that one thread takes at least: some microseconds of work, more than waking another costs.
constexpr std::int64_t kElementsAtLeast = 30'000;
// Elements that take a tenth of a millisecond or more.
constexpr std::int64_t kLongElements = 1'000'000;

std::vector<c10::SymInt> values_shape(const at::Tensor& input) {
  std::vector<c10::SymInt> shape = input.sym_sizes().vec();
  shape.back() = shape.back() / 2;
  return shape;
}

// TensorRT-LLM multiplies with the global scale, 448 * 6 / amax; torchao and ModelOpt divide by theirs, which is its
// reciprocal. Given that by mistake, nearly all scale factors become zero, and the result with them. Looks at some
// blocks all over the matrix, and no more once it was said.
void warn_of_reciprocal(const QuantizeRows& work, std::int64_t rows) {
  static std::atomic<bool> said = false;
  if (said.load(std::memory_order_relaxed)) {
    return;
  }
  const std::int64_t blocks = work.columns / kBlock;
  const std::int64_t step = std::max<std::int64_t>(1, rows * blocks / 1000);
  std::int64_t with_elements = 0;
  std::int64_t lost = 0;
  for (std::int64_t i = 0; i < rows * blocks; i += step) {
    const std::uint8_t* at = work.values + i * (kBlock / 2);
    if (std::any_of(at, at + kBlock / 2, [](std::uint8_t pair) { return pair != 0; })) {
      ++with_elements;
      const std::int64_t offset = work.swizzled ? swizzled_offset(i / blocks, i % blocks, blocks) : i;
      lost += work.scale_factors[offset] == 0 ? 1 : 0;
    }
  }
  if (lost * 10 > with_elements * 9 && !said.exchange(true)) {
    autotune::host::warn(c10::str(
        kQuantizeName, ": ", lost, " of ", with_elements,
        " blocks that are not zero got a scale factor of zero, so they read as zero. input_scale is multiplied with, "
        "448 * 6 / amax, as in TensorRT-LLM; the reciprocal, amax / (448 * 6), as torchao and ModelOpt keep it, does "
        "this. Pass 1 / input_scale if that is what you have."));
  }
}

}  // namespace

std::vector<at::Tensor> quantize_cpu(const at::Tensor& input,
                                     const at::Tensor& input_scale,
                                     std::int64_t scaling_vector_size,
                                     bool is_sf_swizzled_layout) {
  check_quantize<std::int64_t>(input, input_scale, scaling_vector_size);
  const std::int64_t columns = input.size(-1);
  const std::int64_t rows = columns == 0 ? 0 : input.numel() / columns;
  const std::int64_t blocks = columns / kBlock;
  c10::SmallVector<std::int64_t, 6> shape(input.sizes().begin(), input.sizes().end());
  shape.back() = columns / 2;
  at::Tensor values = torch_compat::empty_cpu(shape, c10::kByte);
  const std::int64_t size = is_sf_swizzled_layout ? swizzled_size(rows, blocks) : rows * blocks;
  at::Tensor scale_factors = torch_compat::empty_cpu({size}, c10::kByte);
  if (size != rows * blocks) {
    std::memset(mutable_bytes_of(scale_factors), 0, static_cast<std::size_t>(size));
  }
  if (rows == 0 || blocks == 0) {
    return {std::move(values), std::move(scale_factors)};
  }
  const QuantizeRows work{
      .input = input.const_data_ptr(),
      .element = element_of(input.scalar_type()),
      .columns = columns,
      .global_scale = input_scale.const_data_ptr<float>(),
      .global_scale_stride = input_scale.numel() == 1 ? 0 : 1,
      .values = mutable_bytes_of(values),
      .scale_factors = mutable_bytes_of(scale_factors),
      .swizzled = is_sf_swizzled_layout,
  };
  const Kernels& target = chosen_target();
  const auto run = [&] {
    parallel(rows, std::max<std::int64_t>(1, kElementsAtLeast / columns),
             [&](std::int64_t first, std::int64_t last) { target.quantize_rows(work, first, last); });
  };
  if (input.numel() < kLongElements) {
    run();
  } else {
    const LongWork long_work({input, input_scale});
    run();
  }
  // A look at the first blocks decides whether a closer one is worth it.
  const std::int64_t first = std::min<std::int64_t>(blocks, 4);
  if (std::all_of(work.scale_factors, work.scale_factors + first, [](std::uint8_t scale) { return scale == 0; })) {
    warn_of_reciprocal(work, rows);
  }
  return {std::move(values), std::move(scale_factors)};
}

// NOLINTBEGIN(performance-unnecessary-value-param): the schema's type is taken by value
std::vector<at::Tensor> quantize_fake(const at::Tensor& input,
                                      const at::Tensor& input_scale,
                                      c10::SymInt scaling_vector_size,
                                      bool is_sf_swizzled_layout) {
  // NOLINTEND(performance-unnecessary-value-param)
  check_quantize<c10::SymInt>(input, input_scale, scaling_vector_size);
  const c10::SymInt columns = input.sym_size(-1);
  const c10::SymInt rows = rows_of<c10::SymInt>(input);
  const at::TensorOptions bytes = input.options().dtype(c10::kByte);
  const c10::SymInt size =
      is_sf_swizzled_layout ? swizzled_size<c10::SymInt>(rows, columns / kBlock) : rows * (columns / kBlock);
  return {at::empty_symint(values_shape(input), bytes), at::empty_symint({size}, bytes)};
}

at::Tensor dequantize_cpu(const at::Tensor& values,
                          const at::Tensor& scale_factors,
                          const at::Tensor& global_scale,
                          c10::ScalarType dtype,
                          bool is_sf_swizzled_layout) {
  check_dequantize<std::int64_t>(values, scale_factors, global_scale, dtype, is_sf_swizzled_layout);
  c10::SmallVector<std::int64_t, 6> shape(values.sizes().begin(), values.sizes().end());
  shape.back() *= 2;
  const at::Tensor result = at::empty(shape, values.options().dtype(c10::kFloat));
  const std::int64_t blocks = shape.back() / kBlock;
  const std::int64_t rows = blocks == 0 ? 0 : values.numel() / (shape.back() / 2);
  const std::uint8_t* codes = bytes_of(values);
  const std::uint8_t* scales = bytes_of(scale_factors);
  const float* global_scales = global_scale.const_data_ptr<float>();
  const bool one = global_scale.numel() == 1;
  auto* out = result.mutable_data_ptr<float>();
  parallel(rows, std::max<std::int64_t>(1, kElementsAtLeast / std::max<std::int64_t>(1, shape.back())),
           [&](std::int64_t first, std::int64_t last) {
             for (std::int64_t row = first; row < last; ++row) {
               const float global = global_scales[one ? 0 : row];
               for (std::int64_t block = 0; block < blocks; ++block) {
                 const std::int64_t offset =
                     is_sf_swizzled_layout ? swizzled_offset(row, block, blocks) : row * blocks + block;
                 const float scale = e4m3_value(scales[offset]);
                 const std::int64_t at = (row * blocks + block) * (kBlock / 2);
                 for (std::int64_t i = at; i < at + kBlock / 2; ++i) {
                   out[2 * i] = e2m1_value(codes[i] & 15U) * scale / global;
                   out[2 * i + 1] = e2m1_value(codes[i] >> 4U) * scale / global;
                 }
               }
             }
           });
  return result.to(dtype);
}

at::Tensor dequantize_fake(const at::Tensor& values,
                           const at::Tensor& scale_factors,
                           const at::Tensor& global_scale,
                           c10::ScalarType dtype,
                           bool is_sf_swizzled_layout) {
  check_dequantize<c10::SymInt>(values, scale_factors, global_scale, dtype, is_sf_swizzled_layout);
  std::vector<c10::SymInt> shape = values.sym_sizes().vec();
  shape.back() = shape.back() * 2;
  return at::empty_symint(shape, values.options().dtype(dtype));
}

namespace {

template <typename Int>
void check_swizzle(const at::Tensor& scale_factors) {
  constexpr std::string_view name = "dutyfree::swizzle_scale_factors";
  check_bytes<Int>(name, "scale_factors", scale_factors, c10::kFloat8_e4m3fn);
  TORCH_CHECK_VALUE(scale_factors.dim() == 2, name,
                    ": scale_factors must have two dimensions, (M, K / 16), but has shape ", scale_factors.sym_sizes(),
                    ".");
}

template <typename Int>
void check_unswizzle(const at::Tensor& scale_factors, const Int& rows, const Int& columns) {
  constexpr std::string_view name = "dutyfree::unswizzle_scale_factors";
  TORCH_CHECK_VALUE(rows >= 0 && columns >= 0, name, ": rows and columns must not be negative, but are ", rows, " and ",
                    columns, ".");
  check_scale_factors<Int>(name, "scale_factors", scale_factors, rows, Int(columns * kBlock), true);
}

}  // namespace

at::Tensor swizzle(const at::Tensor& scale_factors) {
  check_swizzle<std::int64_t>(scale_factors);
  const std::int64_t blocks = scale_factors.size(1);
  const std::int64_t rows = blocks == 0 ? 0 : scale_factors.size(0);
  at::Tensor result = at::zeros({swizzled_size(rows, blocks)}, scale_factors.options());
  const std::uint8_t* from = bytes_of(scale_factors);
  std::uint8_t* to = mutable_bytes_of(result);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      to[swizzled_offset(row, block, blocks)] = from[row * blocks + block];
    }
  }
  return result;
}

at::Tensor swizzle_fake(const at::Tensor& scale_factors) {
  check_swizzle<c10::SymInt>(scale_factors);
  return at::empty_symint({swizzled_size<c10::SymInt>(scale_factors.sym_size(0), scale_factors.sym_size(1))},
                          scale_factors.options());
}

at::Tensor unswizzle(const at::Tensor& scale_factors, std::int64_t rows, std::int64_t columns) {
  check_unswizzle<std::int64_t>(scale_factors, rows, columns);
  at::Tensor result = at::empty({rows, columns}, scale_factors.options());
  const std::uint8_t* from = bytes_of(scale_factors);
  std::uint8_t* to = mutable_bytes_of(result);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t block = 0; block < columns; ++block) {
      to[row * columns + block] = from[swizzled_offset(row, block, columns)];
    }
  }
  return result;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): as above
at::Tensor unswizzle_fake(const at::Tensor& scale_factors, c10::SymInt rows, c10::SymInt columns) {
  check_unswizzle<c10::SymInt>(scale_factors, rows, columns);
  return at::empty_symint({rows, columns}, scale_factors.options());
}

}  // namespace dutyfree::nvfp4
