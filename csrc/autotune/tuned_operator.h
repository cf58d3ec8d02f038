#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autotune/measure.h"
#include "autotune/tactic_table.h"

namespace dutyfree::autotune {

// What an operator chose, for people and files.
struct Choice {
  std::string configuration;
  std::vector<std::int64_t> dims;
  std::string tactic;
  double microseconds = 0;
  LeftOut left_out;
};

// A key that a call found no choice for.
struct Miss {
  std::string configuration;
  std::vector<std::int64_t> dims;
  std::string fallback;  // what calls use meanwhile; empty where no call came yet
  std::string unknown;   // the tactic that a file has for it and that no code has named; mostly empty
};

// What calls of this process had to choose from for a key.
struct Listed {
  std::string configuration;
  std::vector<std::int64_t> dims;
  std::vector<std::string> tactics;
};

// One operator's tactics and choices:
//
//   static TunedOperator tuned("my::gemm", {"small tiles", "large tiles"});   // tactics 0 and 1
//   int tactic = tuned.find(key);
//   if (tactic < 0) [[unlikely]] {
//     tactic = tuned.decide(key, {0, 1}, /*fallback=*/0, {.run = [&](int candidate) { ... }});
//   }
//
// Every member may be called by any thread, with or without the GIL.
class TunedOperator {
 public:
  // Registers itself under its name, which no other may have, and takes what `restore_choice` kept for it. Tactics
  // named here have the numbers 0, 1, ...
  explicit TunedOperator(std::string name, std::initializer_list<std::string_view> tactics = {});
  ~TunedOperator();
  TunedOperator(const TunedOperator&) = delete;
  TunedOperator& operator=(const TunedOperator&) = delete;

  const std::string& name() const { return name_; }

  // Numbers for texts, the same for the same text as long as the process lives. Cold: they lock and may allocate. A
  // file's choice counts from when the operator has named the tactic. Configuration 0 is the empty text.
  std::uint32_t configuration(std::string_view text);
  int tactic(std::string_view name);

  // The tactic of a call: measured, or what an earlier decide() fell back to. kNoTactic (-1): ask decide(). Takes no
  // lock and allocates nothing. It knows nothing of the call's candidates: where a file may name a tactic that the
  // operator has but this call can't use, the operator looks, and asks decide() as if nothing had been found.
  int find(KeyView key) const noexcept { return table_.find(key); }

  // What to do when find() has nothing. While tuning: measures the candidates, keeps the fastest and returns it; where
  // none ran, returns the fallback. Otherwise, and while the device only captures a graph, the fallback, with one
  // warning an operator. What it returns is one of the candidates or the fallback, whatever a file says. Throws what
  // ended a measurement (a ctrl-C) or what a warning became.
  int decide(KeyView key, const std::vector<int>& candidates, int fallback, const Work& work);

  // What files, other ranks and people do. `restore` takes a choice for one that was measured, in place of the one that
  // there is. `waiting` has those of a tactic that no code has named yet, unless a call came since and lacked it.
  void restore(const Choice& choice);
  void forget();
  std::vector<Choice> choices() const;
  std::vector<Choice> waiting() const;
  std::vector<Miss> misses() const;
  std::vector<Listed> listed() const;

 private:
  using Entry = TacticTable::Entry;

  int miss(KeyView key, const std::vector<int>& candidates, int fallback, bool captured);
  void keep(KeyView key, const std::vector<int>& candidates, const Measurement& measurement);
  std::string describe(KeyView key) const;
  // An entry's choice, of this tactic.
  Choice choice_of(const Entry& entry, std::string tactic) const;

  const std::string name_;
  TacticTable table_;
  // Guards all that follows and every change of the table. Nothing below it takes the GIL or calls back.
  mutable std::mutex mutex_;
  // Names by number, and numbers by name. A deque keeps the names where they are.
  std::deque<std::string> tactics_;
  std::unordered_map<std::string_view, int> tactic_numbers_;
  std::deque<std::string> configurations_;
  std::unordered_map<std::string_view, std::uint32_t> configuration_numbers_;
  bool warned_ = false;
};

// Every operator that exists, by name. Any thread.
std::vector<TunedOperator*> tuned_operators();
// The one with this name, made for the life of the process if there is none. Any thread.
TunedOperator& tuned_operator(std::string_view name);

// What files and other ranks say of operators that may not exist yet: kept until the operator does. Any thread.
void restore_choice(std::string_view name, const Choice& choice);
// What is kept, by the operators' names.
std::vector<std::pair<std::string, Choice>> kept_choices();
// Forgets the choices of every operator, and what is kept.
void forget_choices();

}  // namespace dutyfree::autotune
