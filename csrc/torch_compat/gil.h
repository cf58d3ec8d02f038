#pragma once

#include <Python.h>

namespace dutyfree::torch_compat {

// Lets other threads run Python code for its lifetime. The thread that makes it holds the GIL, and has it again after.
struct GilReleased {
  GilReleased() : state(PyEval_SaveThread()) {}
  ~GilReleased() { PyEval_RestoreThread(state); }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  PyThreadState* state;
};

}  // namespace dutyfree::torch_compat
