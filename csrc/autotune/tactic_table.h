#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "autotune/tuning_mode.h"

namespace dutyfree::autotune {

// What a choice is kept by within one operator: an interned configuration and sizes, already bucketed. Refers to the
// caller's sizes.
struct KeyView {
  std::uint32_t configuration = 0;
  std::span<const std::int64_t> dims;
};

// A key that holds its sizes, as many as C++ operators need.
struct Key {
  std::uint32_t configuration = 0;
  std::uint32_t size = 0;
  std::array<std::int64_t, 6> dims{};

  // NOLINTNEXTLINE(google-explicit-constructor): a view of it is what every function takes
  operator KeyView() const noexcept { return {configuration, std::span(dims).first(size)}; }
};

// The sizes that share a choice: a power of two and all above it to the next. Zero is a bucket of its own.
inline constexpr std::int64_t bucket(std::int64_t size) noexcept {
  return size <= 0 ? 0 : static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(size)));
}

inline constexpr int kNoTactic = -1;

// Names of tactics that can't be run, and why.
using LeftOut = std::vector<std::pair<std::string, std::string>>;

// Keys with their choices: insert-only open addressing. Looking up takes no lock, allocates nothing and may run while
// another thread inserts, replaces or clears; entries and outgrown tables live as long as the table, whose size that at
// most doubles.
class TacticTable {
 public:
  // One key's choice. Made once; the key never changes after.
  class Entry {
   public:
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    KeyView key() const noexcept { return {configuration_, {dims(), size_}}; }
    int choice() const noexcept { return choice_.load(std::memory_order_acquire); }

    // A tactic that was measured, in this process or by whoever wrote the file that it comes from.
    bool is_measured() const noexcept { return choice() >= 0; }
    // The tactic that calls use for want of one, kNoTactic if no call asked yet.
    int fallback() const noexcept {
      const int now = choice();
      return now <= kFirstFallback ? kFirstFallback - now : kNoTactic;
    }

    // The writers below hold the lock of the table's owner.
    void set_measured(int tactic) noexcept { choice_.store(tactic, std::memory_order_release); }
    void set_fallback(int tactic) noexcept { choice_.store(kFirstFallback - tactic, std::memory_order_release); }
    void clear() noexcept { choice_.store(kNoTactic, std::memory_order_release); }

    // Read and written under the same lock.
    double microseconds = 0;
    LeftOut left_out;
    // The tactics that calls of this process had for this key, as far as they had to decide.
    std::vector<int> listed;
    // The tactic that a file has for this key, while no code has named a tactic like that.
    std::string awaited;

   private:
    friend class TacticTable;
    static constexpr int kFirstFallback = -2;

    Entry(KeyView key, std::uint64_t hash)
        : hash_(hash), configuration_(key.configuration), size_(static_cast<std::uint32_t>(key.dims.size())) {}

    // The sizes lie behind the entry, so that a look-up reads one piece of memory.
    const std::int64_t* dims() const noexcept { return reinterpret_cast<const std::int64_t*>(this + 1); }

    bool matches(KeyView key, std::uint64_t hash) const noexcept {
      return hash_ == hash && configuration_ == key.configuration && size_ == key.dims.size() &&
             std::equal(key.dims.begin(), key.dims.end(), dims());
    }

    const std::uint64_t hash_;
    std::atomic<int> choice_{kNoTactic};
    const std::uint32_t configuration_;
    const std::uint32_t size_;
  };

  TacticTable() { publish(std::make_unique<Slots>(16)); }
  TacticTable(const TacticTable&) = delete;
  TacticTable& operator=(const TacticTable&) = delete;

  // The measured tactic; outside of tuning also the fallback that an earlier call began to use; else kNoTactic.
  int find(KeyView key) const noexcept {
    const Entry* entry = entry_of(key, hash_of(key));
    if (entry == nullptr) [[unlikely]] {
      return kNoTactic;
    }
    const int choice = entry->choice();
    if (choice >= 0) [[likely]] {
      return choice;
    }
    return tuning() ? kNoTactic : entry->fallback();
  }

  // The key's entry, made if there is none. Only under the lock of the table's owner.
  Entry& at(KeyView key) {
    const std::uint64_t hash = hash_of(key);
    if (Entry* entry = entry_of(key, hash)) {
      return *entry;
    }
    if ((entries_.size() + 1) * 2 > slots_.load(std::memory_order_relaxed)->size()) {
      auto larger = std::make_unique<Slots>(slots_.load(std::memory_order_relaxed)->size() * 2);
      for (const auto& entry : entries_) {
        larger->put(entry.get());
      }
      publish(std::move(larger));
    }
    void* memory = ::operator new(sizeof(Entry) + key.dims.size_bytes());
    entries_.emplace_back(new (memory) Entry(key, hash));
    std::copy(key.dims.begin(), key.dims.end(), reinterpret_cast<std::int64_t*>(entries_.back().get() + 1));
    slots_.load(std::memory_order_relaxed)->put(entries_.back().get());
    return *entries_.back();
  }

  // In the order in which they were made. Only under the lock of the table's owner.
  auto& entries() const { return entries_; }

 private:
  struct Delete {
    void operator()(Entry* entry) const {
      entry->~Entry();
      ::operator delete(entry);
    }
  };

  // At most half full, so that each search ends.
  class Slots {
   public:
    explicit Slots(std::size_t size) : slots_(size) {}

    std::size_t size() const { return slots_.size(); }
    const std::atomic<Entry*>& operator[](std::uint64_t hash) const noexcept {
      return slots_[hash & (slots_.size() - 1)];
    }
    void put(Entry* entry) {
      std::uint64_t index = entry->hash_;
      while ((*this)[index].load(std::memory_order_relaxed) != nullptr) {
        ++index;
      }
      // The entry is complete before a reader can see it.
      slots_[index & (slots_.size() - 1)].store(entry, std::memory_order_release);
    }

   private:
    std::vector<std::atomic<Entry*>> slots_;
  };

  static std::uint64_t hash_of(KeyView key) noexcept {
    std::uint64_t hash = key.configuration + 0x9E3779B97F4A7C15ULL;
    for (const std::int64_t dim : key.dims) {
      // Bucketed sizes differ in high bits only, which a product alone would never bring down.
      hash = (std::rotr(hash, 29) ^ static_cast<std::uint64_t>(dim)) * 0xD6E8FEB86659FD93ULL;
    }
    return hash ^ (hash >> 32U);
  }

  Entry* entry_of(KeyView key, std::uint64_t hash) const noexcept {
    const Slots& slots = *slots_.load(std::memory_order_acquire);
    for (std::uint64_t index = hash;; ++index) {
      Entry* entry = slots[index].load(std::memory_order_acquire);
      if (entry == nullptr || entry->matches(key, hash)) {
        return entry;
      }
    }
  }

  void publish(std::unique_ptr<Slots> slots) {
    generations_.push_back(std::move(slots));
    slots_.store(generations_.back().get(), std::memory_order_release);
  }

  std::atomic<Slots*> slots_{nullptr};
  // Owned. A reader may still be in an outgrown one.
  std::vector<std::unique_ptr<Slots>> generations_;
  std::vector<std::unique_ptr<Entry, Delete>> entries_;
};

}  // namespace dutyfree::autotune
