#include "nvfp4/backends.h"

#include <c10/util/Exception.h>

#include <array>

#include "nvfp4/checks.h"

namespace dutyfree::nvfp4 {
namespace {

constexpr auto kCount = static_cast<std::size_t>(Backend::count);
constexpr std::array<const char*, kCount> kNames = {"cutlass", "cublaslt",    "cuda_core",   "cutedsl", "portable",
                                                    "avx2",    "avx512_bf16", "avx512_vnni", "bf16_mm"};
constexpr std::string_view kDefaultNames = "cutlass,cublaslt,cuda_core";

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
  }
  while (!text.empty() && text.back() == ' ') {
    text.remove_suffix(1);
  }
  return text;
}

}  // namespace

const char* name_of(Backend backend) { return kNames[static_cast<std::size_t>(backend)]; }

std::string names_of(Backends backends) {
  std::string names;
  for (std::size_t i = 0; i < kCount; ++i) {
    if ((backends >> i & 1U) != 0) {
      names += (names.empty() ? "" : ", ") + std::string(kNames[i]);
    }
  }
  return names;
}

Backends parse_backends(std::string_view names) {
  if (names == kDefaultNames) {
    return kDefaultBackends;
  }
  Backends found = 0;
  std::string unknown;
  while (!names.empty()) {
    const std::size_t comma = names.find(',');
    const std::string_view name = without_spaces(names.substr(0, comma));
    names = comma == std::string_view::npos ? std::string_view() : names.substr(comma + 1);
    if (name.empty()) {
      continue;
    }
    std::size_t i = 0;
    while (i < kCount && name != kNames[i]) {
      ++i;
    }
    if (i < kCount) {
      found |= 1U << i;
    } else {
      unknown += (unknown.empty() ? "'" : ", '") + std::string(name) + "'";
    }
  }
  constexpr Backends all = (1U << kCount) - 1U;
  TORCH_CHECK_VALUE(unknown.empty(), kGemmName, ": allowed_backends has ", unknown, ", which is unknown. Valid are ",
                    names_of(all), ".");
  TORCH_CHECK_VALUE(found != 0, kGemmName, ": allowed_backends names no backend. Valid are ", names_of(all), ".");
  return found;
}

Backends usable_backends(Backends allowed, Backends available, std::string_view device) {
  const Backends usable =
      allowed == kDefaultBackends && (available & kDefaultBackends) == 0 ? available : allowed & available;
  TORCH_CHECK_VALUE(usable != 0, kGemmName, ": none of the allowed backends (", names_of(allowed), ") is available on ",
                    device, ", which has ", names_of(available), ".");
  return usable;
}

}  // namespace dutyfree::nvfp4
