#include "nvfp4/backends.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <vector>

#include "autotune/tuned_operator.h"
#include "nvfp4/checks.h"

namespace dutyfree::nvfp4 {
namespace {

constexpr auto kCount = static_cast<std::size_t>(Backend::count);
constexpr std::array<const char*, kCount> kNames = {"cutlass", "cublaslt",    "cuda_core",   "cutedsl", "portable",
                                                    "avx2",    "avx512_bf16", "avx512_vnni", "bf16_mm"};
constexpr std::string_view kDefaultNames = "cutlass,cublaslt,cuda_core";

constexpr Backends kAll = (1U << kCount) - 1U;
constexpr std::size_t kSets = std::size_t{1} << kCount;
// The fastest on large products first.
constexpr std::array kBySpeed = {Backend::cublaslt, Backend::avx512_vnni, Backend::avx512_bf16,
                                 Backend::avx2,     Backend::bf16_mm,     Backend::portable};

// Tactics are backends, by number. Never destroyed: a thread may call an operator while the process ends.
autotune::TunedOperator& tuner() {
  static auto& tuner = []() -> autotune::TunedOperator& {
    auto& made = autotune::tuned_operator(kGemmName);  // a cache that was read before may have brought it
    for (const char* name : kNames) {
      made.tactic(name);
    }
    return made;
  }();
  return tuner;
}

// The tuner's number for a configuration. Asking it by text takes a lock, so the answers are kept: zero is none yet.
std::uint32_t configuration(Backends usable, c10::DeviceType device, c10::ScalarType output) {
  static std::array<std::atomic<std::uint32_t>, kSets * 2 * 3> known{};
  const std::size_t of_output = output == c10::kBFloat16 ? 0 : (output == c10::kHalf ? 1 : 2);
  const std::size_t index = ((device == c10::kCPU ? 0 : 3) + of_output) * kSets + usable;
  std::uint32_t number = known[index].load(std::memory_order_relaxed);
  if (number == 0) [[unlikely]] {
    number = tuner().configuration(c10::DeviceTypeName(device, true) + ' ' + c10::toString(output) + " of " +
                                   names_of(usable));
    known[index].store(number, std::memory_order_relaxed);
  }
  return number;
}

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
  TORCH_CHECK_VALUE(unknown.empty(), kGemmName, ": allowed_backends has ", unknown, ", which is unknown. Valid are ",
                    names_of(kAll), ".");
  TORCH_CHECK_VALUE(found != 0, kGemmName, ": allowed_backends names no backend. Valid are ", names_of(kAll), ".");
  return found;
}

Backends usable_backends(Backends allowed, Backends available, std::string_view device) {
  const Backends usable =
      allowed == kDefaultBackends && (available & kDefaultBackends) == 0 ? available : allowed & available;
  TORCH_CHECK_VALUE(usable != 0, kGemmName, ": none of the allowed backends (", names_of(allowed), ") is available on ",
                    device, ", which has ", names_of(available), ".");
  return usable;
}

Backends candidates_of(Backends usable) {
  Backends slower = 0;
  if ((usable & (bit(Backend::avx512_vnni) | bit(Backend::avx512_bf16))) != 0) {
    slower = bit(Backend::avx2) | bit(Backend::portable);
  } else if ((usable & bit(Backend::avx2)) != 0) {
    slower = bit(Backend::portable);
  }
  return usable & ~slower;
}

Backend choose_backend(Backends usable,
                       c10::DeviceType device,
                       c10::ScalarType output,
                       std::int64_t rows,
                       std::int64_t columns,
                       std::int64_t inner,
                       c10::function_ref<autotune::Work()> work) {
  const auto fallback = [&]() -> Backend {
    for (const Backend backend : kBySpeed) {
      if ((usable & bit(backend)) != 0) {
        return backend;
      }
    }
    TORCH_INTERNAL_ASSERT(false, "no backend is usable");
  };
  if ((usable & (usable - 1)) == 0) {
    return fallback();  // the only one
  }
  const autotune::Key key{.configuration = configuration(usable, device, output),
                          .size = 3,
                          .dims = {autotune::bucket(rows), columns, inner}};
  int tactic = tuner().find(key);
  if (tactic < 0) [[unlikely]] {
    std::vector<int> candidates;
    for (int i = 0; i < static_cast<int>(kCount); ++i) {
      if ((usable >> static_cast<unsigned>(i) & 1U) != 0) {
        candidates.push_back(i);
      }
    }
    tactic = tuner().decide(key, candidates, static_cast<int>(fallback()), work());
  }
  // A file may name what this device lacks, and Python code may give the operator tactics that are no backends.
  const bool is_usable = tactic < static_cast<int>(kCount) && (usable >> static_cast<unsigned>(tactic) & 1U) != 0;
  return is_usable ? static_cast<Backend>(tactic) : fallback();
}

}  // namespace dutyfree::nvfp4
