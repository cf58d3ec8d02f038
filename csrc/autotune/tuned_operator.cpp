#include "autotune/tuned_operator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <sstream>
#include <stdexcept>

#include "autotune/host.h"

namespace dutyfree::autotune {
namespace {

struct Registry {
  // Taken before an operator's own. Recursive, since an operator's constructor takes it too.
  std::recursive_mutex mutex;
  std::map<std::string, TunedOperator*, std::less<>> operators;
  // Choices that were restored before their operator was made: by operator, then by configuration and sizes.
  std::map<std::string, std::map<std::pair<std::string, std::vector<std::int64_t>>, Choice>, std::less<>> kept;
};

// Never destroyed: operators may be, after it.
Registry& registry() {
  static auto* made = new Registry();
  return *made;
}

std::atomic<std::uint64_t> measured_count{0};

// Longer than measuring one operator's tactics takes, short enough for a program that waits for itself.
constexpr std::chrono::seconds kLongestTurn{60};

bool is_one_of(const std::vector<int>& candidates, int tactic) {
  return std::find(candidates.begin(), candidates.end(), tactic) != candidates.end();
}

void add(const std::vector<int>& tactics, std::vector<int>& all) {
  for (const int tactic : tactics) {
    if (!is_one_of(all, tactic)) {
      all.push_back(tactic);
    }
  }
}

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
  const std::lock_guard lock(registry().mutex);
  if (registry().operators.contains(name_)) {
    throw std::invalid_argument("there is a tuned operator " + name_ + " already");
  }
  const auto kept = registry().kept.find(name_);
  if (kept != registry().kept.end()) {
    for (const auto& [key, choice] : kept->second) {
      restore(choice);
    }
  }
  registry().operators.emplace(name_, this);
  if (kept != registry().kept.end()) {
    registry().kept.erase(kept);
  }
}

TunedOperator::~TunedOperator() {
  const std::lock_guard lock(registry().mutex);
  registry().operators.erase(name_);
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
  const bool captured = tuning() && work.is_captured && work.is_captured();
  if (!tuning() || captured) {
    return miss(key, candidates, fallback, captured);
  }
  const host::MeasuringTurn turn(kLongestTurn);
  if (!turn) {
    return fallback;
  }
  // Another thread may have measured it meanwhile.
  if (const int found = find(key); is_one_of(candidates, found)) {
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
  keep(key, candidates, measurement);
  return best->tactic;
}

void TunedOperator::keep(KeyView key, const std::vector<int>& candidates, const Measurement& measurement) {
  const std::lock_guard lock(mutex_);
  Entry& entry = table_.at(key);
  add(candidates, entry.listed);
  entry.microseconds = measurement.best()->microseconds;
  entry.awaited.clear();
  entry.left_out.clear();
  for (const auto& [tactic, reason] : measurement.left_out) {
    entry.left_out.emplace_back(tactics_[static_cast<std::size_t>(tactic)], reason);
  }
  entry.set_measured(measurement.best()->tactic);
  measured_count.fetch_add(1, std::memory_order_relaxed);
}

int TunedOperator::miss(KeyView key, const std::vector<int>& candidates, int fallback, bool captured) {
  host::load_default_cache();
  std::ostringstream text;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = table_.at(key);
    add(candidates, entry.listed);
    if (is_one_of(candidates, entry.choice())) {
      return entry.choice();
    }
    // Another call's choice stays: this one's candidates may lack what others have.
    const bool of_another = entry.is_measured();
    if (fallback >= 0 && !of_another) {
      entry.set_fallback(fallback);
    }
    if (std::exchange(warned_, true)) {
      return fallback;
    }
    text << name_ << " has no tuned tactic for " << describe(key);
    if (of_another) {
      text << " (the cache names '" << tactics_[static_cast<std::size_t>(entry.choice())]
           << "', which the call can't use)";
    } else if (!entry.awaited.empty()) {
      text << " (the cache names '" << entry.awaited << "', which the operator does not have)";
    }
    if (fallback >= 0) {
      text << " and uses '" << tactics_[static_cast<std::size_t>(fallback)] << "'";
    }
    text << (captured ? ". Nothing can be measured while a graph is captured: tune before it."
                      : ". Run the program once within dutyfree.autotune() or by `dutyfree tune`.")
         << " This is said once an operator: AutoTuner.get().misses() lists the others.";
  }
  host::warn(text.str());
  return fallback;
}

void TunedOperator::restore(const Choice& choice) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t number = intern(std::string_view(choice.configuration), configurations_, configuration_numbers_);
  Entry& entry = table_.at({number, choice.dims});
  entry.microseconds = choice.microseconds;
  entry.left_out = choice.left_out;
  const auto known = tactic_numbers_.find(choice.tactic);
  if (known != tactic_numbers_.end()) {
    entry.awaited.clear();
    entry.set_measured(known->second);
  } else {
    entry.awaited = choice.tactic;
    entry.clear();
  }
}

void TunedOperator::forget() {
  const std::lock_guard lock(mutex_);
  warned_ = false;
  for (const auto& entry : table_.entries()) {
    entry->awaited.clear();
    entry->left_out.clear();
    entry->listed.clear();
    entry->clear();
  }
}

std::vector<Choice> TunedOperator::choices() const {
  const std::lock_guard lock(mutex_);
  std::vector<Choice> result;
  for (const auto& entry : table_.entries()) {
    if (entry->is_measured()) {
      result.push_back(choice_of(*entry, tactics_[static_cast<std::size_t>(entry->choice())]));
    }
  }
  return result;
}

std::vector<Choice> TunedOperator::waiting() const {
  const std::lock_guard lock(mutex_);
  std::vector<Choice> result;
  for (const auto& entry : table_.entries()) {
    if (!entry->awaited.empty() && entry->fallback() < 0) {
      result.push_back(choice_of(*entry, entry->awaited));
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

std::vector<Listed> TunedOperator::listed() const {
  const std::lock_guard lock(mutex_);
  std::vector<Listed> result;
  for (const auto& entry : table_.entries()) {
    if (entry->listed.empty()) {
      continue;
    }
    const KeyView key = entry->key();
    Listed& made =
        result.emplace_back(configurations_[key.configuration],
                            std::vector<std::int64_t>(key.dims.begin(), key.dims.end()), std::vector<std::string>());
    for (const int tactic : entry->listed) {
      made.tactics.push_back(tactics_[static_cast<std::size_t>(tactic)]);
    }
  }
  return result;
}

Choice TunedOperator::choice_of(const Entry& entry, std::string tactic) const {
  const KeyView key = entry.key();
  return {configurations_[key.configuration],
          {key.dims.begin(), key.dims.end()},
          std::move(tactic),
          entry.microseconds,
          entry.left_out};
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
  const std::lock_guard lock(registry().mutex);
  std::vector<TunedOperator*> result;
  for (const auto& [name, tuned] : registry().operators) {
    result.push_back(tuned);
  }
  return result;
}

TunedOperator& tuned_operator(std::string_view name) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().operators.find(name);
  return found != registry().operators.end() ? *found->second : *new TunedOperator(std::string(name));
}

void restore_choice(std::string_view name, const Choice& choice) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().operators.find(name);
  if (found != registry().operators.end()) {
    found->second->restore(choice);
  } else {
    registry().kept[std::string(name)].insert_or_assign({choice.configuration, choice.dims}, choice);
  }
}

std::vector<std::pair<std::string, Choice>> kept_choices() {
  const std::lock_guard lock(registry().mutex);
  std::vector<std::pair<std::string, Choice>> result;
  for (const auto& [name, choices] : registry().kept) {
    for (const auto& [key, choice] : choices) {
      result.emplace_back(name, choice);
    }
  }
  return result;
}

void forget_choices() {
  const std::lock_guard lock(registry().mutex);
  registry().kept.clear();
  for (const auto& [name, tuned] : registry().operators) {
    tuned->forget();
  }
}

}  // namespace dutyfree::autotune
