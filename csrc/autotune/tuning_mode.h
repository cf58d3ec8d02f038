#pragma once

#include <atomic>
#include <cstdint>

namespace dutyfree::autotune {

// How candidates are measured.
struct Settings {
  int warmup = 3;     // runs of a candidate before those that count
  int repeats = 10;   // runs that count; the fastest is the candidate's time
  bool cold = false;  // whether caches are emptied before each run that counts
};

namespace detail {
inline constinit std::atomic<bool> tuning_flag{false};
}

// Whether a call without a measured tactic measures now, for the whole process. Any thread, with or without the GIL.
inline bool tuning() noexcept { return detail::tuning_flag.load(std::memory_order_relaxed); }

// Any thread, with or without the GIL. A measurement under way keeps the settings that it began with.
Settings settings();
void set_tuning(bool enabled, Settings settings);

// Choices measured since the process began. Any thread, with or without the GIL.
std::uint64_t measured_choices() noexcept;

}  // namespace dutyfree::autotune
