#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <c10/util/FunctionRef.h>
#include <cstdint>
#include <string>
#include <string_view>

#include "autotune/measure.h"

// The names in nvfp4_gemm's argument allowed_backends, as sets of bits.
namespace dutyfree::nvfp4 {

enum class Backend : std::uint8_t {
  // On CUDA.
  cutlass,
  cublaslt,
  cuda_core,
  cutedsl,
  // On the CPU: the targets of target.h.
  portable,
  avx2,
  avx512_bf16,
  avx512_vnni,
  // On both: decoded to bf16, on the CPU the weight once, and PyTorch's own product.
  bf16_mm,
  count,
};

using Backends = std::uint32_t;
constexpr Backends bit(Backend backend) { return 1U << static_cast<unsigned>(backend); }
const char* name_of(Backend backend);
std::string names_of(Backends backends);

// The schema's default, "cutlass,cublaslt,cuda_core", which leaves the choice open: on the CPU, where none of the three
// exists, it stands for all that do.
constexpr Backends kDefaultBackends = bit(Backend::cutlass) | bit(Backend::cublaslt) | bit(Backend::cuda_core);

// Those of a comma-separated list. Throws c10::ValueError for an unknown name, which the text shows with the known
// ones, and for an empty list.
Backends parse_backends(std::string_view names);

// Those of `allowed` that `device` has. Throws where there are none; the text lists those that there are.
Backends usable_backends(Backends allowed, Backends available, std::string_view device);

// Those that may be the fastest: a target is no candidate where a better one of its kind is.
Backends candidates_of(Backends usable);

// The backend for a product of this size: what the tuner measured or, before it did, the first of `usable` in the order
// of their speed on large products. While tuning it measures: work.run(tactic) is called with backends as numbers, and
// makes the whole product each time.
Backend choose_backend(Backends usable,
                       c10::DeviceType device,
                       c10::ScalarType output,
                       std::int64_t rows,
                       std::int64_t columns,
                       std::int64_t inner,
                       c10::function_ref<autotune::Work()> work);

}  // namespace dutyfree::nvfp4
