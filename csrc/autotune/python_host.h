#pragma once

#include <cstdint>
#include <span>

#include "py_ref.h"

namespace dutyfree::autotune {

// Sizes as a tuple of ints; nothing where memory ran out. Needs the GIL.
PyRef python_dims(std::span<const std::int64_t> dims);

// Who is told what is measured: called with (operator, configuration, dims, tactic, index, count), or null for no one.
// Returns who was told before. Needs the GIL.
PyRef set_progress(PyObject* callable);

}  // namespace dutyfree::autotune
