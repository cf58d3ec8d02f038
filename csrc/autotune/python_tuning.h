#pragma once

#include <Python.h>

namespace dutyfree::autotune {

// Tuning, for Python: functions of the module, see _core.pyi. All need the GIL.
bool add_tuning_functions(PyObject* module);

}  // namespace dutyfree::autotune
