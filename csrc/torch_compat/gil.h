#pragma once

#include <Python.h>

#include <optional>

namespace dutyfree::torch_compat {

// Lets other threads run Python code for its lifetime. The thread that makes it holds the GIL, and has it again after.
struct GilReleased {
  GilReleased() : state(PyEval_SaveThread()) {}
  ~GilReleased() { PyEval_RestoreThread(state); }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  PyThreadState* state;
};

// The same for a thread that may not hold it, as one that PyTorch's dispatcher runs.
class GilReleasedIfHeld {
 public:
  GilReleasedIfHeld() {
    if (PyGILState_Check() != 0) {
      released_.emplace();
    }
  }

 private:
  std::optional<GilReleased> released_;
};

}  // namespace dutyfree::torch_compat
