#pragma once

#include <Python.h>

namespace dutyfree::autotune {

// _core.RunnerChooser: chooses among Python runners by the tensors of a call. Guarded by the GIL.
bool add_runner_chooser_type(PyObject* module);

}  // namespace dutyfree::autotune
