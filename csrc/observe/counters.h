#pragma once

#include "observe/reason.h"

namespace dutyfree::observe {

// One operator's calls, by path and by reason. Belongs to the operator; read and written under the GIL.
class Counters {
 public:
  void count(Path path, Reason reason) {
    ++paths_[static_cast<std::size_t>(path)];
    ++reasons_[static_cast<std::size_t>(reason)];
  }
  void reset() { *this = Counters(); }

  std::uint64_t calls(Path path) const { return paths_[static_cast<std::size_t>(path)]; }
  std::uint64_t calls(Reason reason) const { return reasons_[static_cast<std::size_t>(reason)]; }

 private:
  std::array<std::uint64_t, kPathNames.size()> paths_{};
  std::array<std::uint64_t, kReasonNames.size()> reasons_{};
};

}  // namespace dutyfree::observe
