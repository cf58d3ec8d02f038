#include "autotune/measure.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>

#include "autotune/host.h"
#include "torch_compat/parallel.h"

namespace dutyfree::autotune {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kMebibyte = 1'048'576;

// The contexts that have not ended, in the order of their beginnings.
struct Contexts {
  std::mutex mutex;
  std::map<std::uint64_t, Settings> active;
  std::uint64_t last = 0;
};

// Never destroyed; replaced in a child, where a thread that no longer exists may have the mutex.
Contexts* contexts = new Contexts();

// Of the last level. What the system's files say, since sysconf adds up the caches of the whole machine on some.
std::int64_t cache_size() {
  std::int64_t largest = 0;
  for (int index = 0; index < 5; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    std::int64_t size = 0;
    char unit = 0;
    if (file >> size >> unit) {
      largest = std::max(largest, size * (unit == 'M' ? kMebibyte : 1024));
    }
  }
  return largest == 0 ? 32 * kMebibyte : std::min(largest, 256 * kMebibyte);
}

// Memory twice as large as the last cache; writing to all of it takes everything else out of the caches.
class CacheSweep {
 public:
  // By the threads that kernels run on, so that each one's own caches are emptied too.
  void operator()() {
    if (memory_.empty()) {
      memory_.resize(static_cast<std::size_t>(2 * cache_size() / kCacheLine));
    }
    torch_compat::parallel(static_cast<std::int64_t>(memory_.size()), kMebibyte / kCacheLine,
                           [this](std::int64_t first, std::int64_t last) {
                             for (std::int64_t line = first; line < last; ++line) {
                               ++memory_[static_cast<std::size_t>(line)].first;
                             }
                           });
  }

 private:
  struct alignas(kCacheLine) Line {
    std::int64_t first = 0;
  };
  std::vector<Line> memory_;
};

// A candidate this many times slower than the best is not worth the rest of its repeats.
constexpr double kHopeless = 3;
constexpr int kEnoughToSeeThat = 3;

class Stopwatch {
 public:
  Stopwatch(const Settings& settings, const Work& work) : settings_(settings), work_(work) {}

  double microseconds(int tactic, double best) {
    for (int run = 0; run < settings_.warmup; ++run) {
      work_.run(tactic);
    }
    synchronise();
    double fastest = std::numeric_limits<double>::infinity();
    for (int run = 0; run < std::max(settings_.repeats, 1); ++run) {
      host::let_signals_through();
      if (settings_.cold) {
        evict();
      }
      const auto start = Clock::now();
      work_.run(tactic);
      synchronise();
      const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
      fastest = std::min(fastest, elapsed.count());
      if (run + 1 >= kEnoughToSeeThat && fastest > kHopeless * best) {
        break;
      }
    }
    return fastest;
  }

 private:
  void synchronise() {
    if (work_.synchronise) {
      work_.synchronise();
    }
  }
  void evict() {
    if (work_.evict) {
      work_.evict();
    } else {
      sweep_();
    }
    synchronise();
  }

  const Settings& settings_;
  const Work& work_;
  CacheSweep sweep_;
};

}  // namespace

Settings settings() {
  const std::lock_guard lock(contexts->mutex);
  return contexts->active.empty() ? Settings{} : contexts->active.rbegin()->second;
}

std::uint64_t begin_tuning(Settings settings) {
  const std::lock_guard lock(contexts->mutex);
  const std::uint64_t context = ++contexts->last;
  contexts->active.emplace(context, settings);
  detail::tuning_flag.store(true, std::memory_order_relaxed);
  return context;
}

void end_tuning(std::uint64_t context) noexcept {
  const std::lock_guard lock(contexts->mutex);
  contexts->active.erase(context);
  detail::tuning_flag.store(!contexts->active.empty(), std::memory_order_relaxed);
}

void end_tuning_after_fork() {
  // The parent's contexts, which may end here too, are not to be taken for those that begin here.
  auto* ours = new Contexts();
  ours->last = contexts->last;
  contexts = ours;
  detail::tuning_flag.store(false, std::memory_order_relaxed);
}

const Measured* Measurement::best() const {
  // The first of equals, so that a tie goes to what the operator itself lists first.
  const auto least = std::min_element(measured.begin(), measured.end(), [](const Measured& a, const Measured& b) {
    return a.microseconds < b.microseconds;
  });
  return least == measured.end() ? nullptr : &*least;
}

Measurement measure(const Settings& settings,
                    const std::vector<int>& candidates,
                    const Work& work,
                    const std::function<void(std::size_t)>& before) {
  Measurement result;
  Stopwatch stopwatch(settings, work);
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t index = 0; index < candidates.size(); ++index) {
    before(index);
    try {
      const double microseconds = stopwatch.microseconds(candidates[index], best);
      result.measured.push_back({candidates[index], microseconds});
      best = std::min(best, microseconds);
    } catch (const std::exception& error) {
      if (!host::is_about_the_candidate(error)) {
        throw;
      }
      result.left_out.emplace_back(candidates[index], error.what());
    }
  }
  return result;
}

}  // namespace dutyfree::autotune
