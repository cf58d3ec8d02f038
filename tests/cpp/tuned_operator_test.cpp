#include "autotune/tuned_operator.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/csrc/Exceptions.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

#include "autotune/device_work.h"
#include "autotune/host.h"
#include "py_ref.h"
#include "torch_compat/gil.h"

namespace dutyfree::autotune {
namespace {

// Tuning for the life of a test, and the user's default cache left alone.
class Tuning {
 public:
  explicit Tuning(Settings wanted = {.warmup = 1, .repeats = 3}) {
    host::skip_default_cache();
    context_ = begin_tuning(wanted);
  }
  ~Tuning() { end_tuning(context_); }
  Tuning(const Tuning&) = delete;
  Tuning& operator=(const Tuning&) = delete;

 private:
  std::uint64_t context_;
};

// Warnings of the test's calls, kept from the log and counted.
class CaughtWarnings {
 public:
  CaughtWarnings() {
    host::skip_default_cache();
    module_ = PyRef::steal(PyImport_ImportModule("warnings"));
    const PyRef catcher = PyRef::steal(PyObject_GetAttrString(module_.get(), "catch_warnings"));
    const PyRef none = PyRef::steal(PyTuple_New(0));
    const PyRef keywords = PyRef::steal(Py_BuildValue("{s:O}", "record", Py_True));
    context_ = PyRef::steal(PyObject_Call(catcher.get(), none.get(), keywords.get()));
    caught_ = PyRef::steal(PyObject_CallMethod(context_.get(), "__enter__", nullptr));
    filter("always");
  }
  ~CaughtWarnings() {
    (void)PyRef::steal(PyObject_CallMethod(context_.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
  }
  CaughtWarnings(const CaughtWarnings&) = delete;
  CaughtWarnings& operator=(const CaughtWarnings&) = delete;

  void filter(const char* action) {
    (void)PyRef::steal(PyObject_CallMethod(module_.get(), "simplefilter", "s", action));
  }
  std::size_t count() const { return static_cast<std::size_t>(PyList_GET_SIZE(caught_.get())); }
  std::string text(Py_ssize_t index) const {
    const PyRef message = PyRef::steal(PyObject_GetAttrString(PyList_GET_ITEM(caught_.get(), index), "message"));
    const PyRef shown = PyRef::steal(PyObject_Str(message.get()));
    return PyUnicode_AsUTF8(shown.get());
  }

 private:
  PyRef module_;
  PyRef context_;
  PyRef caught_;
};

Key key_of(std::int64_t rows, std::int64_t columns = 64) {
  return {.configuration = 0, .size = 2, .dims = {bucket(rows), columns}};
}

void pause(int microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

TEST(Bucket, IsThePowerOfTwoBelow) {
  EXPECT_EQ(bucket(0), 0);
  EXPECT_EQ(bucket(1), 1);
  EXPECT_EQ(bucket(2), 2);
  EXPECT_EQ(bucket(3), 2);
  EXPECT_EQ(bucket(1023), 512);
  EXPECT_EQ(bucket(1024), 1024);
  EXPECT_EQ(bucket((1LL << 62) + 1), 1LL << 62);
  EXPECT_EQ(bucket(-3), 0);
}

TEST(TunedOperator, FindsNothingBeforeItsFirstChoice) {
  const TunedOperator tuned("test::empty", {"a"});
  EXPECT_EQ(tuned.find(key_of(16)), kNoTactic);
}

TEST(TunedOperator, KeepsTheFastestTactic) {
  TunedOperator tuned("test::fastest", {"slow", "fast", "slower"});
  const Tuning on;
  const Work work{.run = [](int tactic) { pause(tactic == 1 ? 50 : tactic == 0 ? 2000 : 4000); }};
  EXPECT_EQ(tuned.decide(key_of(17), {0, 1, 2}, 0, work), 1);
  EXPECT_EQ(tuned.find(key_of(17)), 1);
  EXPECT_EQ(tuned.find(key_of(31)), 1);
  EXPECT_EQ(tuned.find(key_of(32)), kNoTactic);
  EXPECT_EQ(tuned.find(key_of(17, 65)), kNoTactic);
  const auto choices = tuned.choices();
  ASSERT_EQ(choices.size(), 1U);
  EXPECT_EQ(choices[0].tactic, "fast");
  EXPECT_EQ(choices[0].dims, (std::vector<std::int64_t>{16, 64}));
  EXPECT_GT(choices[0].microseconds, 50);
  EXPECT_LT(choices[0].microseconds, 2000);
}

TEST(TunedOperator, RunsWarmUpRepeatsAndNoMore) {
  TunedOperator tuned("test::repeats", {"a", "b"});
  const Tuning on({.warmup = 4, .repeats = 6});
  int runs = 0, waits = 0;
  const Work work{.run = [&](int) { ++runs, pause(100); }, .synchronise = [&] { ++waits; }};
  (void)tuned.decide(key_of(1), {0, 1}, 0, work);
  EXPECT_EQ(runs, 2 * (4 + 6));
  EXPECT_EQ(waits, 2 * (1 + 6));
  (void)tuned.decide(key_of(1), {0, 1}, 0, work);
  EXPECT_EQ(runs, 20) << "what is measured is not measured again";
}

TEST(TunedOperator, StopsEarlyWithAHopelessTactic) {
  TunedOperator tuned("test::hopeless", {"fast", "slow"});
  const Tuning on({.warmup = 0, .repeats = 50});
  int slow_runs = 0;
  (void)tuned.decide(key_of(1), {0, 1}, 0, {.run = [&](int tactic) {
                       slow_runs += tactic;
                       pause(tactic == 1 ? 3000 : 10);
                     }});
  EXPECT_GT(slow_runs, 1);
  EXPECT_LT(slow_runs, 50);
}

TEST(TunedOperator, EmptiesTheCachesBeforeEachColdRun) {
  TunedOperator tuned("test::cold", {"a"});
  int evictions = 0;
  const Work work{.run = [](int) {}, .synchronise = {}, .is_captured = {}, .evict = [&] { ++evictions; }};
  {
    const Tuning on({.warmup = 2, .repeats = 5, .cold = false});
    (void)tuned.decide(key_of(1), {0}, 0, work);
    EXPECT_EQ(evictions, 0);
  }
  const Tuning on({.warmup = 2, .repeats = 5, .cold = true});
  (void)tuned.decide(key_of(2), {0}, 0, work);
  EXPECT_EQ(evictions, 5);
}

// Memory that a warm run finds in the cache; reading it takes longer once the default sweep has run.
TEST(TunedOperator, SweepsTheCpusCachesByDefault) {
  std::vector<std::int64_t> memory(1 << 14, 1);
  const volatile std::int64_t* values = memory.data();
  const Work work{.run = [&](int) {
    for (std::size_t index = 0; index < memory.size(); index += 8) {
      (void)values[index];
    }
  }};
  TunedOperator tuned("test::sweep", {"a"});
  {
    const Tuning on({.warmup = 2, .repeats = 5, .cold = false});
    (void)tuned.decide(key_of(1), {0}, 0, work);
  }
  const Tuning on({.warmup = 2, .repeats = 5, .cold = true});
  (void)tuned.decide(key_of(2), {0}, 0, work);
  const auto choices = tuned.choices();
  ASSERT_EQ(choices.size(), 2U);
  EXPECT_GT(choices[1].microseconds, 1.5 * choices[0].microseconds);
}

TEST(TunedOperator, LeavesATacticThatThrowsOutWithItsReason) {
  TunedOperator tuned("test::throws", {"bad", "good"});
  const Tuning on;
  EXPECT_EQ(tuned.decide(key_of(1), {0, 1}, 0,
                         {.run =
                              [](int tactic) {
                                if (tactic == 0) {
                                  throw std::runtime_error("needs another processor");
                                }
                              }}),
            1);
  const auto choices = tuned.choices();
  ASSERT_EQ(choices.at(0).left_out.size(), 1U);
  EXPECT_EQ(choices[0].left_out[0], (std::pair<std::string, std::string>("bad", "needs another processor")));
}

TEST(TunedOperator, KeepsNothingWhereNoTacticRan) {
  TunedOperator tuned("test::all throw", {"a", "b"});
  const Tuning on;
  EXPECT_EQ(tuned.decide(key_of(1), {0, 1}, 1, {.run = [](int) { throw std::runtime_error("no"); }}), 1);
  EXPECT_EQ(tuned.find(key_of(1)), kNoTactic);
  EXPECT_TRUE(tuned.choices().empty());
}

TEST(TunedOperator, EndsTheMeasurementAtAnInterrupt) {
  TunedOperator tuned("test::interrupted", {"a", "b"});
  const Tuning on;
  (void)tuned.decide(key_of(1), {0, 1}, 0, {.run = [](int) {}});
  int runs = 0;
  const Work interrupting{.run = [&](int) {
    ++runs;
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    python_error error;
    error.persist();
    throw error;
  }};
  EXPECT_THROW((void)tuned.decide(key_of(2), {0, 1}, 0, interrupting), python_error);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(tuned.find(key_of(2)), kNoTactic);
  EXPECT_NE(tuned.find(key_of(1)), kNoTactic);
}

// A kernel of C++ raises nothing itself, and may run without the GIL.
TEST(TunedOperator, LetsACtrlCThroughBetweenRunsOfAKernelWithoutTheGil) {
  const PyRef signals = PyRef::steal(PyImport_ImportModule("signal"));
  const PyRef handler = PyRef::steal(PyObject_GetAttrString(signals.get(), "default_int_handler"));
  // Python installs it only where the shell does not ignore ctrl-C.
  const PyRef before = PyRef::steal(PyObject_CallMethod(signals.get(), "signal", "iO", SIGINT, handler.get()));
  TunedOperator tuned("test::signal", {"a", "b"});
  const Tuning on({.warmup = 0, .repeats = 50});
  int runs = 0;
  {
    const torch_compat::GilReleased released;
    EXPECT_THROW((void)tuned.decide(key_of(1), {0, 1}, 0,
                                    {.run =
                                         [&](int) {
                                           if (++runs == 3) {
                                             PyErr_SetInterrupt();
                                           }
                                         }}),
                 python_error);
  }
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(tuned.find(key_of(1)), kNoTactic);
  (void)PyRef::steal(PyObject_CallMethod(signals.get(), "signal", "iO", SIGINT, before.get()));
}

TEST(TunedOperator, FallsBackOutsideOfTuningWithOneWarning) {
  TunedOperator tuned("test::miss", {"a", "b"});
  const CaughtWarnings caught;
  int runs = 0;
  const Work work{.run = [&](int) { ++runs; }};
  EXPECT_EQ(tuned.decide(key_of(16), {0, 1}, 1, work), 1);
  EXPECT_EQ(tuned.decide(key_of(64), {0, 1}, 1, work), 1);
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(caught.count(), 1U);
  EXPECT_NE(caught.text(0).find("test::miss has no tuned tactic for sizes [16, 64] and uses 'b'"), std::string::npos)
      << caught.text(0);
  EXPECT_EQ(tuned.misses().size(), 2U);
  EXPECT_TRUE(tuned.choices().empty());
}

TEST(TunedOperator, FindsTheFallbackFromThenOnUntilTuningReplacesIt) {
  TunedOperator tuned("test::remembered", {"a", "b"});
  const CaughtWarnings caught;
  (void)tuned.decide(key_of(16), {0, 1}, 0, {});
  EXPECT_EQ(tuned.find(key_of(16)), 0);
  {
    const Tuning on;
    EXPECT_EQ(tuned.find(key_of(16)), kNoTactic);
    EXPECT_EQ(tuned.decide(key_of(16), {0, 1}, 0, {.run = [](int tactic) { pause(tactic == 0 ? 1000 : 10); }}), 1);
  }
  EXPECT_EQ(tuned.find(key_of(16)), 1);
  EXPECT_TRUE(tuned.misses().empty());
}

TEST(TunedOperator, ThrowsWhatAWarningBecame) {
  TunedOperator tuned("test::error", {"a"});
  CaughtWarnings caught;
  caught.filter("error");
  EXPECT_THROW((void)tuned.decide(key_of(16), {0}, 0, {}), python_error);
  EXPECT_EQ(PyErr_Occurred(), nullptr);
}

TEST(TunedOperator, RestoresAChoiceOfATacticThatItHas) {
  TunedOperator tuned("test::restored", {"a", "b"});
  tuned.restore({"bf16", {16, 64}, "b", 3.5, {}});
  const Key key{.configuration = tuned.configuration("bf16"), .size = 2, .dims = {16, 64}};
  EXPECT_EQ(tuned.find(key), 1);
  EXPECT_EQ(tuned.find(key_of(16)), kNoTactic) << "of another configuration";
  EXPECT_EQ(tuned.choices().at(0).microseconds, 3.5);
}

TEST(TunedOperator, IgnoresAChoiceOfAnUnknownTacticUntilItIsNamed) {
  TunedOperator tuned("test::unknown", {"a"});
  tuned.restore({"", {16, 64}, "later", 1, {}});
  EXPECT_EQ(tuned.find(key_of(16)), kNoTactic);
  EXPECT_TRUE(tuned.choices().empty());
  ASSERT_EQ(tuned.misses().size(), 1U);
  EXPECT_EQ(tuned.misses()[0].unknown, "later");
  {
    const CaughtWarnings caught;
    EXPECT_EQ(tuned.decide(key_of(16), {0}, 0, {}), 0);
    EXPECT_NE(caught.text(0).find("the cache names 'later'"), std::string::npos) << caught.text(0);
  }
  const int later = tuned.tactic("later");
  EXPECT_EQ(tuned.find(key_of(16)), later);
}

TEST(TunedOperator, ListsWhatWaitsForItsTacticUntilACallLacksIt) {
  TunedOperator tuned("test::waiting", {"a"});
  tuned.restore({"", {16, 64}, "later", 1.5, {{"a", "no"}}});
  tuned.restore({"", {32, 64}, "never", 1, {}});
  ASSERT_EQ(tuned.waiting().size(), 2U);
  EXPECT_EQ(tuned.waiting()[0].tactic, "later");
  EXPECT_EQ(tuned.waiting()[0].microseconds, 1.5);
  EXPECT_EQ(tuned.waiting()[0].left_out, (LeftOut{{"a", "no"}}));
  {
    const CaughtWarnings caught;
    (void)tuned.decide(key_of(32), {0}, 0, {});
  }
  EXPECT_EQ(tuned.waiting().size(), 1U) << "the call had no tactic of that name";
  (void)tuned.tactic("later");
  EXPECT_TRUE(tuned.waiting().empty());
  EXPECT_EQ(tuned.choices().at(0).left_out, (LeftOut{{"a", "no"}}));
}

TEST(TunedOperator, RemembersWhatCallsHadToChooseFrom) {
  TunedOperator tuned("test::listed", {"a", "b", "c"});
  tuned.restore({"", {16, 64}, "c", 1, {}});
  EXPECT_TRUE(tuned.listed().empty()) << "a file is no call";
  {
    const CaughtWarnings caught;
    (void)tuned.decide(key_of(16), {1, 0}, 1, {});
    (void)tuned.decide(key_of(16), {0}, 0, {});
  }
  ASSERT_EQ(tuned.listed().size(), 1U);
  EXPECT_EQ(tuned.listed()[0].dims, (std::vector<std::int64_t>{16, 64}));
  EXPECT_EQ(tuned.listed()[0].tactics, (std::vector<std::string>{"b", "a"}));
  tuned.forget();
  EXPECT_TRUE(tuned.listed().empty());
}

TEST(TunedOperator, ForgetsEveryChoice) {
  TunedOperator tuned("test::forgotten", {"a"});
  tuned.restore({"", {16, 64}, "a", 1, {}});
  tuned.restore({"", {32, 64}, "unknown", 1, {}});
  tuned.forget();
  EXPECT_EQ(tuned.find(key_of(16)), kNoTactic);
  EXPECT_TRUE(tuned.misses().empty());
  tuned.restore({"", {16, 64}, "a", 1, {}});
  EXPECT_EQ(tuned.find(key_of(16)), 0);
}

TEST(TunedOperator, HasANameOfItsOwn) {
  const TunedOperator tuned("test::name");
  EXPECT_THROW(TunedOperator("test::name"), std::invalid_argument);
  EXPECT_EQ(&tuned_operator("test::name"), &tuned);
}

TEST(TunedOperator, TakesWhatWasRestoredBeforeItWasMade) {
  restore_choice("test::early", {"bf16", {16, 64}, "a", 2, {}});
  restore_choice("test::early", {"bf16", {16, 64}, "b", 3, {}});
  restore_choice("test::early", {"", {32, 64}, "later", 1, {}});
  {
    TunedOperator tuned("test::early", {"a", "b"});
    const Key key{.configuration = tuned.configuration("bf16"), .size = 2, .dims = {16, 64}};
    EXPECT_EQ(tuned.find(key), 1);
    EXPECT_EQ(tuned.choices().at(0).microseconds, 3);
    const int later = tuned.tactic("later");
    EXPECT_EQ(tuned.find(key_of(32)), later);
    EXPECT_EQ(&tuned_operator("test::early"), &tuned);
    EXPECT_THROW(TunedOperator("test::early"), std::invalid_argument) << "it exists now";
    restore_choice("test::early", {"bf16", {16, 64}, "a", 2, {}});
    EXPECT_EQ(tuned.find(key), 0);
  }
  const TunedOperator again("test::early", {"a", "b"});
  EXPECT_TRUE(again.choices().empty()) << "what was kept was taken";
}

TEST(TunedOperator, IsMadeByItsNameWithWhatWasRestoredBefore) {
  restore_choice("test::by name", {"", {16, 64}, "a", 2, {}});
  TunedOperator& tuned = tuned_operator("test::by name");
  EXPECT_EQ(tuned.find(key_of(16)), kNoTactic);
  const int a = tuned.tactic("a");
  EXPECT_EQ(tuned.find(key_of(16)), a);
}

TEST(TunedOperator, TakesNothingThatWasForgottenBeforeItWasMade) {
  restore_choice("test::forgotten early", {"", {16, 64}, "a", 2, {}});
  forget_choices();
  const TunedOperator tuned("test::forgotten early", {"a"});
  EXPECT_EQ(tuned.find(key_of(16)), kNoTactic);
}

TEST(TunedOperator, NeverDecidesForATacticThatIsNoCandidate) {
  TunedOperator tuned("test::not usable", {"a", "b", "c"});
  tuned.restore({"", {16, 64}, "c", 1, {}});
  {
    const CaughtWarnings caught;
    EXPECT_EQ(tuned.decide(key_of(16), {0, 1}, 0, {}), 0);
    ASSERT_EQ(caught.count(), 1U);
    EXPECT_NE(caught.text(0).find("names 'c', which the call can't use"), std::string::npos) << caught.text(0);
  }
  EXPECT_EQ(tuned.find(key_of(16)), 2) << "other calls may have that candidate";
  EXPECT_EQ(tuned.decide(key_of(16), {0, 2}, 0, {}), 2);
  const Tuning on;
  EXPECT_EQ(tuned.decide(key_of(16), {0, 1}, 0, {.run = [](int tactic) { pause(tactic == 0 ? 1000 : 10); }}), 1);
  EXPECT_EQ(tuned.find(key_of(16)), 1);
}

TEST(TunedOperator, MeasuresNothingWhileAGraphIsCaptured) {
  TunedOperator tuned("test::captured", {"a", "b"});
  const CaughtWarnings caught;
  const Tuning on;
  int runs = 0;
  bool captured = true;
  const Work work{.run = [&](int tactic) { ++runs, pause(tactic == 1 ? 10 : 1000); },
                  .synchronise = nullptr,
                  .is_captured = [&] { return captured; }};
  EXPECT_EQ(tuned.decide(key_of(16), {0, 1}, 0, work), 0);
  EXPECT_EQ(runs, 0);
  ASSERT_EQ(caught.count(), 1U);
  EXPECT_NE(caught.text(0).find("while a graph is captured"), std::string::npos) << caught.text(0);
  captured = false;
  EXPECT_EQ(tuned.decide(key_of(16), {0, 1}, 0, work), 1) << "it is measured once it can be";
}

// A device that no one else has, whose streams say what a test wants.
struct SomeStreams final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::FPGA;
  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {static_type, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  bool isStreamCapturing(const c10::Stream&) const override { return captures; }
  void synchronizeStream(const c10::Stream&) const override { ++waits; }
  static inline bool captures = false;
  static inline int waits = 0;
};
C10_REGISTER_GUARD_IMPL(FPGA, SomeStreams)

TEST(DeviceWork, AsksTheDevicesCurrentStream) {
  const Work work = work_on(c10::Device(c10::DeviceType::FPGA, 0), [](int) {});
  work.synchronise();
  EXPECT_EQ(SomeStreams::waits, 1);
  EXPECT_FALSE(work.is_captured());
  SomeStreams::captures = true;
  EXPECT_TRUE(work.is_captured());
  SomeStreams::captures = false;
  EXPECT_FALSE(work_on(c10::kCPU, [](int) {}).is_captured);
}

TEST(TuningMode, LastsFromTheFirstBeginToTheLastEnd) {
  EXPECT_FALSE(tuning());
  const std::uint64_t first = begin_tuning({.warmup = 1, .repeats = 1});
  const std::uint64_t second = begin_tuning({.warmup = 2, .repeats = 2});
  const std::uint64_t third = begin_tuning({.warmup = 3, .repeats = 3});
  end_tuning(first);
  end_tuning(first);
  EXPECT_EQ(settings().repeats, 3);
  end_tuning(third);
  EXPECT_TRUE(tuning());
  EXPECT_EQ(settings().repeats, 2);
  end_tuning(second);
  EXPECT_FALSE(tuning());
  EXPECT_EQ(settings().repeats, Settings{}.repeats);
}

TEST(TunedOperator, TellsAllOfManyKeysApart) {
  TunedOperator tuned("test::many");
  for (int index = 0; index < 100; ++index) {
    (void)tuned.tactic("t" + std::to_string(index));
  }
  // Powers of two, as buckets are, and keys of which one is the beginning of another.
  for (int high = 0; high < 40; ++high) {
    for (int low = 0; low < 40; ++low) {
      tuned.restore({"", {1LL << high, 1LL << low}, "t" + std::to_string((high * 7 + low) % 100), 1, {}});
      tuned.restore({"", {1LL << high, 1LL << low, 0}, "t" + std::to_string((high + low) % 100), 1, {}});
    }
  }
  for (int high = 0; high < 40; ++high) {
    for (int low = 0; low < 40; ++low) {
      EXPECT_EQ(tuned.find(Key{.size = 2, .dims = {1LL << high, 1LL << low}}), (high * 7 + low) % 100);
      EXPECT_EQ(tuned.find(Key{.size = 3, .dims = {1LL << high, 1LL << low, 0}}), (high + low) % 100);
    }
  }
}

TEST(TunedOperator, IsReadWhileAnotherThreadAddsAndReplaces) {
  TunedOperator tuned("test::threads", {"even", "odd"});
  tuned.restore({"", {1, 64}, "even", 1, {}});
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&] {
      while (!done) {
        const int first = tuned.find(key_of(1));
        wrong += first != 0 && first != 1 ? 1 : 0;
        for (std::int64_t columns = 0; columns < 2000; columns += 37) {
          // Not there yet, or right.
          const int found = tuned.find(Key{.size = 2, .dims = {2, columns}});
          wrong += found != kNoTactic && found != columns % 2 ? 1 : 0;
        }
      }
    });
  }
  for (std::int64_t columns = 0; columns < 2000; ++columns) {
    tuned.restore({"", {2, columns}, columns % 2 == 0 ? "even" : "odd", 1, {}});
    tuned.restore({"", {1, 64}, columns % 2 == 0 ? "odd" : "even", 1, {}});
  }
  done = true;
  for (std::thread& reader : readers) {
    reader.join();
  }
  EXPECT_EQ(wrong, 0);
}

// One thread has the GIL and waits for its turn, the one that measures needs the GIL to end.
TEST(TunedOperator, MeasuresByOneThreadAtATimeWithoutADeadlock) {
  TunedOperator tuned("test::turns", {"a"});
  const Tuning on;
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::atomic<int> measurements{0};
  const Work work{.run = [&](int) {
    ++measurements;
    most = std::max(most.load(), ++inside);
    pause(2000);
    const PyGILState_STATE state = PyGILState_Ensure();
    PyGILState_Release(state);
    --inside;
  }};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      if (thread == 0) {
        (void)tuned.decide(key_of(1), {0}, 0, work);
        return;
      }
      const PyGILState_STATE state = PyGILState_Ensure();
      EXPECT_EQ(tuned.decide(key_of(1), {0}, 0, work), 0);
      PyGILState_Release(state);
    });
  }
  {
    const torch_compat::GilReleased released;
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  EXPECT_EQ(most, 1);
  EXPECT_EQ(measurements, 4) << "one warm-up and three repeats, for all threads together";
}

TEST(TunedOperator, MayBeTunedWithinAMeasurement) {
  TunedOperator outer("test::outer", {"a"});
  TunedOperator inner("test::inner", {"a", "b"});
  const Tuning on;
  (void)outer.decide(key_of(1), {0}, 0, {.run = [&](int) {
                       if (inner.find(key_of(1)) < 0) {
                         (void)inner.decide(key_of(1), {0, 1}, 0, {.run = [](int tactic) { pause(tactic * 500); }});
                       }
                     }});
  EXPECT_EQ(inner.find(key_of(1)), 0);
  EXPECT_EQ(outer.find(key_of(1)), 0);
}

double nanoseconds_each(const std::function<int(int)>& run) {
  double best = 1e9;
  constexpr int kRuns = 100000;
  for (int round = 0; round < 10; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const volatile int sum = run(kRuns);
    (void)sum;
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / kRuns);
  }
  return best;
}

TEST(TunedOperator, IsFoundFasterThanInAMapOfTheSameKeys) {
  struct Hash {
    std::size_t operator()(const std::vector<std::int64_t>& dims) const {
      std::size_t hash = 0;
      for (const std::int64_t dim : dims) {
        hash = (hash ^ static_cast<std::size_t>(dim)) * 0xD6E8FEB86659FD93ULL;
      }
      return hash;
    }
  };
  TunedOperator tuned("test::cost", {"a"});
  std::unordered_map<std::vector<std::int64_t>, int, Hash> map;
  for (std::int64_t rows = 1; rows <= 1 << 14; rows *= 2) {
    tuned.restore({"", {rows, 4096, 4096, 1}, "a", 1, {}});
    map[{rows, 4096, 4096, 1}] = 0;
  }
  const double found = nanoseconds_each([&](int runs) {
    int sum = 0;
    for (int run = 0; run < runs; ++run) {
      sum += tuned.find(Key{.size = 4, .dims = {bucket(17 + (run & 1023)), 4096, 4096, 1}});
    }
    return sum;
  });
  const double mapped = nanoseconds_each([&](int runs) {
    int sum = 0;
    for (int run = 0; run < runs; ++run) {
      sum += map.find({bucket(17 + (run & 1023)), 4096, 4096, 1})->second;
    }
    return sum;
  });
  std::cout << "find: " << found << " ns, in a map with keys of their own: " << mapped << " ns\n";
  EXPECT_LT(found, 0.6 * mapped);
}

}  // namespace
}  // namespace dutyfree::autotune
