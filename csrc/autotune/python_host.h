#pragma once

#include <cstdint>
#include <span>

#include "py_ref.h"

namespace dutyfree::autotune {

// Sizes as a tuple of ints; nothing where memory ran out. Needs the GIL.
PyRef python_dims(std::span<const std::int64_t> dims);

// Who is told what is measured while a context (begin_tuning) is the one entered last: called with (operator,
// configuration, dims, tactic, index, count), or null for no one. Need the GIL.
void add_progress(std::uint64_t context, PyObject* callable);
// Returns who was told.
PyRef remove_progress(std::uint64_t context);

}  // namespace dutyfree::autotune
