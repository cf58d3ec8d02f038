#include "nvfp4/gemm.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>

#include "autotune/tuning_mode.h"
#include "nvfp4/backends.h"
#include "nvfp4/checks.h"
#include "nvfp4/format.h"
#include "nvfp4/target.h"
#include "nvfp4/tensors.h"
#include "nvfp4/weights.h"
#include "torch_compat/empty.h"
#include "torch_compat/parallel.h"
#include "torch_compat/plain_keys.h"

namespace dutyfree::nvfp4 {
namespace {

using torch_compat::parallel;

// Rows of activations that are packed at a time: what they take stays in the caches, and is bounded.
constexpr std::int64_t kRowsAtOnce = 256;
// Bytes of activations that one thread packs at least.
constexpr std::int64_t kPackedBytesAtLeast = 30'000;
// Products of elements that take a tenth of a millisecond or more.
constexpr std::int64_t kLongProducts = 32'000'000;
// Products of elements that one thread makes at least, some ten microseconds of work.
constexpr std::int64_t kProductsAtLeast = 4'000'000;

// A thread's memory for packed activations or for a kernel's scratch, which grows as needed and is kept.
class Scratch {
 public:
  std::byte* of(std::int64_t bytes) {
    if (bytes > size_) {
      memory_.reset(new (std::align_val_t(kAlignment)) std::byte[static_cast<std::size_t>(bytes)]);
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Delete {
    void operator()(std::byte* memory) const { operator delete[](memory, std::align_val_t(kAlignment)); }
  };
  std::unique_ptr<std::byte[], Delete> memory_;
  std::int64_t size_ = 0;
};

struct Product {
  const at::Tensor& act_fp4;
  const at::Tensor& weight;
  const at::Tensor& act_sf;
  const at::Tensor& weight_scale;
  float alpha;
  const std::optional<at::Tensor>& bias;
  const at::Tensor& out;
};

void run_kernels(const Kernels& target, const Product& product) {
  const std::shared_ptr<const Packed> packed = packed_weight(product.weight, product.weight_scale, Form::panels);
  at::Tensor bias;
  if (product.bias.has_value()) {
    const torch_compat::PlainKeys plain;
    bias = product.bias->to(c10::kFloat).contiguous();
  }
  const std::int64_t rows = product.act_fp4.size(0);
  const std::int64_t columns = product.weight.size(0);
  const PackedWeight weight = packed->panels;
  const std::int64_t row_bytes = weight.blocks * (kBlock / 2);
  const std::int64_t element_size = static_cast<std::int64_t>(product.out.element_size());
  thread_local Scratch activations;
  Gemm gemm{
      .values = bytes_of(product.act_fp4),
      .scale_factors = bytes_of(product.act_sf),
      .first_row = 0,
      .rows = 0,
      .weight = weight,
      .activations = activations.of(std::min(rows, kRowsAtOnce) * target.activation_bytes(weight.blocks)),
      .alpha = product.alpha,
      .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
      .out = nullptr,
      .element = element_of(product.out.scalar_type()),
      .columns = columns,
  };
  auto* out = static_cast<std::byte*>(product.out.mutable_data_ptr());
  for (std::int64_t first = 0; first < rows; first += kRowsAtOnce) {
    gemm.first_row = first;
    gemm.rows = std::min(kRowsAtOnce, rows - first);
    gemm.out = out + first * columns * element_size;
    parallel(gemm.rows, std::max<std::int64_t>(1, kPackedBytesAtLeast / (row_bytes + 1)),
             [&](std::int64_t begin, std::int64_t end) { target.pack_activations(gemm, begin, end); });
    const std::int64_t panel_work = kPanel * gemm.rows * weight.blocks * kBlock;
    parallel(weight.panels, std::max<std::int64_t>(2, kProductsAtLeast / std::max<std::int64_t>(1, panel_work)),
             [&](std::int64_t begin, std::int64_t end) {
               thread_local Scratch scratch;
               target.gemm(gemm, begin, end, scratch.of(target.scratch_bytes(weight.blocks)));
             });
  }
}

// The product in bf16 as PyTorch has it, which rounds once more than the kernels: to bf16 before alpha.
void run_bf16(const Product& product) {
  const torch_compat::PlainKeys plain;
  const std::shared_ptr<const Packed> weight = packed_weight(product.weight, product.weight_scale, Form::bf16);
  const std::int64_t rows = product.act_fp4.size(0);
  const std::int64_t blocks = product.act_fp4.size(1) * 2 / kBlock;
  const at::Tensor activations = at::empty({rows, blocks * kBlock}, at::TensorOptions().dtype(c10::kBFloat16));
  const auto* values = bytes_of(product.act_fp4);
  const auto* scale_factors = bytes_of(product.act_sf);
  auto* decoded = static_cast<std::uint16_t*>(activations.mutable_data_ptr());
  parallel(rows, 1, [&](std::int64_t first, std::int64_t last) {
    decode_to_bf16(values, scale_factors, decoded, 0, blocks, first, last);
  });
  const at::Tensor sums = at::mm(activations, weight->memory.t()).to(c10::kFloat);
  sums.mul_(product.alpha);
  if (product.bias.has_value()) {
    sums.add_(*product.bias);
  }
  product.out.copy_(sums);
}

// This CPU's targets as backends, whose names they have; null for other backends.
const std::array<const Kernels*, static_cast<std::size_t>(Backend::count)>& kernels_by_backend() {
  static const auto table = [] {
    std::array<const Kernels*, static_cast<std::size_t>(Backend::count)> found{};
    for (const Kernels* target : available_targets()) {
      found[static_cast<std::size_t>(std::countr_zero(parse_backends(target->name)))] = target;
    }
    return found;
  }();
  return table;
}

void run(Backend backend, const Product& product) {
  if (backend == Backend::bf16_mm) {
    return run_bf16(product);
  }
  const Kernels* target = kernels_by_backend()[static_cast<std::size_t>(backend)];
  TORCH_INTERNAL_ASSERT(target != nullptr, name_of(backend), " does not run on this CPU");
  run_kernels(*target, product);
}

Backends available_on_cpu() {
  static const Backends available = [] {
    Backends found = bit(Backend::bf16_mm);
    for (const Kernels* target : available_targets()) {
      found |= parse_backends(target->name);
    }
    return found;
  }();
  return available;
}

// What a call may use. bf16_mm rounds to bf16, so for other results it has to be asked for by its name alone.
Backends usable_on_cpu(std::string_view allowed_backends, c10::ScalarType output_dtype) {
  if (const Kernels* forced = forced_target(); forced != nullptr) {
    parse_backends(allowed_backends);
    return parse_backends(forced->name);
  }
  const Backends usable = usable_backends(parse_backends(allowed_backends), available_on_cpu(), "this CPU");
  const Backends exact = usable & ~bit(Backend::bf16_mm);
  return candidates_of(output_dtype == c10::kBFloat16 || exact == 0 ? usable : exact);
}

void choose_and_run(Backends usable, const Product& product) {
  bool measured = false;
  const Backend backend =
      choose_backend(usable, c10::kCPU, product.out.scalar_type(), product.act_fp4.size(0), product.weight.size(0),
                     product.act_fp4.size(1) * 2, [&] {
                       measured = autotune::tuning();
                       return autotune::Work{.run = [&](int tactic) { run(static_cast<Backend>(tactic), product); }};
                     });
  if (measured) {  // the form that was not chosen is of no more use
    forget_packed_weight(product.weight, product.weight_scale, backend == Backend::bf16_mm ? Form::panels : Form::bf16);
  }
  run(backend, product);
}

}  // namespace

std::vector<std::string> cpu_backends() {
  std::vector<std::string> names = target_names();
  names.emplace_back(name_of(Backend::bf16_mm));
  return names;
}

at::Tensor gemm_cpu(const at::Tensor& act_fp4,
                    const at::Tensor& weight,
                    const at::Tensor& act_sf,
                    const at::Tensor& weight_scale,
                    const at::Tensor& alpha,
                    c10::ScalarType output_dtype,
                    std::int64_t output_buffer_kind,
                    std::string_view allowed_backends,
                    at::OptionalIntArrayRef /*group*/,
                    const std::optional<at::Tensor>& bias) {
  check_gemm<std::int64_t>(act_fp4, weight, act_sf, weight_scale, alpha, output_dtype, output_buffer_kind, bias);
  const Backends usable = usable_on_cpu(allowed_backends, output_dtype);
  const std::int64_t rows = act_fp4.size(0);
  const std::int64_t columns = weight.size(0);
  const at::Tensor out = torch_compat::empty_cpu({rows, columns}, output_dtype);
  if (rows == 0 || columns == 0) {
    return out;
  }
  const Product product{act_fp4, weight, act_sf, weight_scale, *alpha.const_data_ptr<float>(), bias, out};
  if (rows * columns * act_fp4.size(1) * 2 < kLongProducts) {
    choose_and_run(usable, product);
  } else {
    const LongWork long_work({act_fp4, weight, act_sf, weight_scale, bias.value_or(at::Tensor())});
    choose_and_run(usable, product);
  }
  return out;
}

at::Tensor gemm_fake(const at::Tensor& act_fp4,
                     const at::Tensor& weight,
                     const at::Tensor& act_sf,
                     const at::Tensor& weight_scale,
                     const at::Tensor& alpha,
                     c10::ScalarType output_dtype,
                     std::int64_t output_buffer_kind,
                     std::string_view allowed_backends,
                     at::OptionalIntArrayRef /*group*/,
                     const std::optional<at::Tensor>& bias) {
  check_gemm<c10::SymInt>(act_fp4, weight, act_sf, weight_scale, alpha, output_dtype, output_buffer_kind, bias);
  parse_backends(allowed_backends);
  return at::empty_symint({act_fp4.sym_size(0), weight.sym_size(0)}, act_fp4.options().dtype(output_dtype));
}

}  // namespace dutyfree::nvfp4
