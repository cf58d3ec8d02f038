#include "autotune/tuned_operator.h"

#include <atomic>
#include <chrono>
#include <map>
#include <sstream>
#include <stdexcept>

#include "autotune/host.h"

namespace dutyfree::autotune {
namespace {

using OperatorMap = std::map<std::string, TunedOperator*, std::less<>>;

std::mutex& registry_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

// Never destroyed: operators may be, after it.
OperatorMap& registry() {
  static auto* operators = new OperatorMap();
  return *operators;
}

std::atomic<std::uint64_t> measured_count{0};

// Longer than measuring one operator's tactics takes, short enough for a program that waits for itself.
constexpr std::chrono::seconds kLongestTurn{60};

template <typename Number>
Number intern(std::string_view text,
              std::deque<std::string>& texts,
              std::unordered_map<std::string_view, Number>& numbers) {
  const auto found = numbers.find(text);
  if (found != numbers.end()) {
    return found->second;
  }
  const auto number = static_cast<Number>(texts.size());
  numbers.emplace(texts.emplace_back(text), number);
  return number;
}

}  // namespace

std::uint64_t measured_choices() noexcept { return measured_count.load(std::memory_order_relaxed); }

TunedOperator::TunedOperator(std::string name, std::initializer_list<std::string_view> tactics)
    : name_(std::move(name)) {
  intern(std::string_view(), configurations_, configuration_numbers_);
  for (const std::string_view tactic : tactics) {
    intern(tactic, tactics_, tactic_numbers_);
  }
  const std::lock_guard lock(registry_mutex());
  if (!registry().emplace(name_, this).second) {
    throw std::invalid_argument("there is a tuned operator " + name_ + " already");
  }
}

TunedOperator::~TunedOperator() {
  const std::lock_guard lock(registry_mutex());
  registry().erase(name_);
}

std::uint32_t TunedOperator::configuration(std::string_view text) {
  const std::lock_guard lock(mutex_);
  return intern(text, configurations_, configuration_numbers_);
}

int TunedOperator::tactic(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto known = tactics_.size();
  const int number = intern(name, tactics_, tactic_numbers_);
  if (tactics_.size() > known) {
    for (const auto& entry : table_.entries()) {
      if (entry->awaited == name) {
        entry->awaited.clear();
        entry->set_measured(number);
      }
    }
  }
  return number;
}

int TunedOperator::decide(KeyView key, const std::vector<int>& candidates, int fallback, const Work& work) {
  if (!tuning()) {
    return miss(key, fallback);
  }
  const host::MeasuringTurn turn(kLongestTurn);
  if (!turn) {
    return fallback;
  }
  // Another thread may have measured it meanwhile.
  if (const int found = find(key); found >= 0) {
    return found;
  }
  std::string configuration;
  std::vector<std::string> names;
  {
    const std::lock_guard lock(mutex_);
    configuration = configurations_[key.configuration];
    for (const int candidate : candidates) {
      names.push_back(tactics_[static_cast<std::size_t>(candidate)]);
    }
  }
  const Measurement measurement = measure(settings(), candidates, work, [&](std::size_t index) {
    host::show({name_, configuration, key.dims, names[index], index, names.size()});
  });
  const Measured* best = measurement.best();
  if (best == nullptr) {
    // Most likely the call itself is wrong: running the fallback will say how.
    return fallback;
  }
  keep(key, measurement);
  return best->tactic;
}

void TunedOperator::keep(KeyView key, const Measurement& measurement) {
  const std::lock_guard lock(mutex_);
  Entry& entry = table_.at(key);
  entry.microseconds = measurement.best()->microseconds;
  entry.awaited.clear();
  entry.left_out.clear();
  for (const auto& [tactic, reason] : measurement.left_out) {
    entry.left_out.emplace_back(tactics_[static_cast<std::size_t>(tactic)], reason);
  }
  entry.set_measured(measurement.best()->tactic);
  measured_count.fetch_add(1, std::memory_order_relaxed);
}

int TunedOperator::miss(KeyView key, int fallback) {
  host::load_default_cache();
  std::ostringstream text;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = table_.at(key);
    if (entry.is_measured()) {
      return entry.choice();
    }
    if (fallback >= 0) {
      entry.set_fallback(fallback);
    }
    if (std::exchange(warned_, true)) {
      return fallback;
    }
    text << name_ << " has no tuned tactic for " << describe(key);
    if (!entry.awaited.empty()) {
      text << " (the cache names '" << entry.awaited << "', which the operator does not have)";
    }
    if (fallback >= 0) {
      text << " and uses '" << tactics_[static_cast<std::size_t>(fallback)] << "'";
    }
    text << ". Run the program once within dutyfree.autotune() or by `dutyfree tune`. This is said once an operator: "
            "AutoTuner.get().misses() lists the others.";
  }
  host::warn(text.str());
  return fallback;
}

void TunedOperator::restore(std::string_view configuration,
                            const std::vector<std::int64_t>& dims,
                            std::string_view tactic,
                            double microseconds) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t number = intern(configuration, configurations_, configuration_numbers_);
  Entry& entry = table_.at({number, dims});
  entry.microseconds = microseconds;
  entry.left_out.clear();
  const auto known = tactic_numbers_.find(tactic);
  if (known != tactic_numbers_.end()) {
    entry.awaited.clear();
    entry.set_measured(known->second);
  } else {
    entry.awaited = tactic;
    entry.clear();
  }
}

void TunedOperator::forget() {
  const std::lock_guard lock(mutex_);
  warned_ = false;
  for (const auto& entry : table_.entries()) {
    entry->awaited.clear();
    entry->left_out.clear();
    entry->clear();
  }
}

void TunedOperator::discard(KeyView key) {
  const std::lock_guard lock(mutex_);
  Entry& entry = table_.at(key);
  if (entry.is_measured()) {
    entry.awaited = tactics_[static_cast<std::size_t>(entry.choice())];
    entry.clear();
  }
}

std::vector<Choice> TunedOperator::choices() const {
  const std::lock_guard lock(mutex_);
  std::vector<Choice> result;
  for (const auto& entry : table_.entries()) {
    if (entry->is_measured()) {
      const KeyView key = entry->key();
      result.push_back({configurations_[key.configuration],
                        {key.dims.begin(), key.dims.end()},
                        tactics_[static_cast<std::size_t>(entry->choice())],
                        entry->microseconds,
                        entry->left_out});
    }
  }
  return result;
}

std::vector<Miss> TunedOperator::misses() const {
  const std::lock_guard lock(mutex_);
  std::vector<Miss> result;
  for (const auto& entry : table_.entries()) {
    const int fallback = entry->fallback();
    if (fallback >= 0 || !entry->awaited.empty()) {
      const KeyView key = entry->key();
      result.push_back({configurations_[key.configuration],
                        {key.dims.begin(), key.dims.end()},
                        fallback < 0 ? "" : tactics_[static_cast<std::size_t>(fallback)],
                        entry->awaited});
    }
  }
  return result;
}

std::string TunedOperator::describe(KeyView key) const {
  std::ostringstream text;
  text << "sizes [";
  for (std::size_t index = 0; index < key.dims.size(); ++index) {
    text << (index == 0 ? "" : ", ") << key.dims[index];
  }
  text << ']';
  if (const std::string& configuration = configurations_[key.configuration]; !configuration.empty()) {
    text << " of '" << configuration << "'";
  }
  return text.str();
}

std::vector<TunedOperator*> tuned_operators() {
  const std::lock_guard lock(registry_mutex());
  std::vector<TunedOperator*> result;
  for (const auto& [name, tuned] : registry()) {
    result.push_back(tuned);
  }
  return result;
}

TunedOperator& tuned_operator(std::string_view name) {
  {
    const std::lock_guard lock(registry_mutex());
    const auto found = registry().find(name);
    if (found != registry().end()) {
      return *found->second;
    }
  }
  // Two threads may come here with the same name only without the GIL, which all callers hold.
  return *new TunedOperator(std::string(name));
}

}  // namespace dutyfree::autotune
