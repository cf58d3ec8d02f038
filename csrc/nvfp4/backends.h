#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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
  // On both: the weight decoded to bf16 once, and PyTorch's own product.
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

}  // namespace dutyfree::nvfp4
