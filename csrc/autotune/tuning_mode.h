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

// Tuning is on from the first begin to the last end. Contexts need not nest: the one entered last of those that have
// not ended has the settings, and a measurement under way keeps those that it began with. What `begin_tuning` returns
// is for `end_tuning`, which ignores what has ended already. Any thread, with or without the GIL.
std::uint64_t begin_tuning(Settings settings);
void end_tuning(std::uint64_t context) noexcept;
// The defaults where no context is active.
Settings settings();

// For a child right after a fork: the contexts are its parent's, which measures and saves, so tuning is off here.
void end_tuning_after_fork();

// Choices measured since the process began. Any thread, with or without the GIL.
std::uint64_t measured_choices() noexcept;

}  // namespace dutyfree::autotune
