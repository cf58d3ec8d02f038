#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>

// What tuning needs of the Python process around it. Every function may be called with or without the GIL, and takes it
// itself where it needs it; so none may be called under a lock that a thread with the GIL may wait for.
namespace dutyfree::autotune::host {

// What is about to be measured.
struct Progress {
  const std::string& op;
  const std::string& configuration;
  std::span<const std::int64_t> dims;
  const std::string& tactic;
  std::size_t index = 0;  // of the candidates
  std::size_t count = 0;
};

// Tells whoever asked for it (set_progress), then lets a ctrl-C through: throws python_error where that or the listener
// raised.
void show(const Progress& progress);

// Lets Python's signal handlers run, on the thread where they may. Throws python_error where one raised.
void let_signals_through();

// A RuntimeWarning at the Python code that called. Throws python_error where warnings are errors.
void warn(const std::string& text);

// The cache file that a process uses without being told, read when the first tactic is missing: by one thread, for
// which the others wait without the GIL. Later calls do nothing, and neither do any after `skip_default_cache`. Throws
// what ended it (a ctrl-C) or what a warning became.
void load_default_cache();
void skip_default_cache() noexcept;

// Whether an error that a candidate raised is about the candidate: KeyboardInterrupt and SystemExit are not.
bool is_about_the_candidate(const std::exception& error);

// Whose turn it is to measure: one thread at a time, since others would disturb its times; the same thread may measure
// within a measurement. Waits without the GIL, lets a ctrl-C through meanwhile, and gives up after `limit`: the thread
// that measures may itself be waiting for this one.
class MeasuringTurn {
 public:
  explicit MeasuringTurn(std::chrono::milliseconds limit);
  explicit operator bool() const { return lock_.owns_lock(); }

 private:
  std::unique_lock<std::recursive_timed_mutex> lock_;
};

// Makes a forked child forget what its parent's threads were doing: whose turn it is, who reads the cache, and tuning,
// which is the parent's matter. Called once, when the module is made.
void watch_forks();

}  // namespace dutyfree::autotune::host
