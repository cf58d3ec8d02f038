#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "autotune/tuning_mode.h"

namespace dutyfree::autotune {

// What measuring needs of a call. Everything runs on the thread that asked, with or without the GIL, as it came.
struct Work {
  // Does the call's work with a tactic. Repeated, so it may not use up its inputs. What it throws leaves the tactic
  // out.
  std::function<void(int tactic)> run;
  // Waits for the device; nothing for work that is done when `run` returns.
  std::function<void()> synchronise = nullptr;
  // Whether nothing can be measured now, since the device only records its work (a CUDA graph); by default it can.
  std::function<bool()> is_captured = nullptr;
  // Empties the caches that matter; by default those of the CPU, up to the last level.
  std::function<void()> evict = nullptr;
};

struct Measured {
  int tactic;
  double microseconds;
};

struct Measurement {
  std::vector<Measured> measured;                     // in the candidates' order
  std::vector<std::pair<int, std::string>> left_out;  // tactics that threw, and what they said
  const Measured* best() const;                       // the first of the fastest; null where none ran
};

// Times each candidate. `before` runs before each with its index; what it throws ends all of it, as do the errors for
// which host::is_about_the_candidate is false.
Measurement measure(const Settings& settings,
                    const std::vector<int>& candidates,
                    const Work& work,
                    const std::function<void(std::size_t)>& before);

}  // namespace dutyfree::autotune
