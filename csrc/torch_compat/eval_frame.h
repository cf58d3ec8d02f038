#pragma once

#include <Python.h>

#include "py_ref.h"

// custom_op's backend wrapper turns Dynamo off while a body runs. Doing that by its Python wrapper costs a
// microsecond, so it is done here, and only where a frame evaluator is installed at all.
namespace dutyfree::torch_compat {

// Looks the switch up once, at module start. Sets a Python error and returns false where torch has none.
bool initialise_eval_frame();

// True while anything (Dynamo, a debugger) evaluates frames of this interpreter in CPython's place.
bool frame_evaluator_installed();

// Turns Dynamo off on this thread for its lifetime; needs the GIL. `failed()` leaves a Python error set.
class DynamoDisabled {
 public:
  DynamoDisabled();
  ~DynamoDisabled();
  DynamoDisabled(const DynamoDisabled&) = delete;
  DynamoDisabled& operator=(const DynamoDisabled&) = delete;

  bool failed() const { return !prior_; }

 private:
  PyRef prior_;
};

}  // namespace dutyfree::torch_compat
