#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>
#include <vector>

#include "py_ref.h"

// PyTorch's own conversions between Python objects and IValues. Cold: the direct path meets them when an operator is
// set up and when a result is not already what its schema says.
namespace dutyfree::torch_compat {

// The default of `argument` as a body would see it (a ScalarType as torch.dtype, …). Null with a Python error set
// where it can't be shown.
PyRef default_as_python(const c10::Argument& argument);

// The default of `argument` as torch.FunctionSchema shows it in Python. Null with a Python error set where it can't be.
PyRef default_as_schema_shows(const c10::Argument& argument);

// The IValue of an exact argument value; of the default where `value` is null. Throws PyTorch's errors.
c10::IValue to_ivalue(const c10::Argument& argument, PyObject* value);

enum class Conversion : std::uint8_t {
  Done,
  Mismatch,  // the value does not fit the schema: of several overloads, PyTorch tries the next
  Failed,    // PyTorch's binding fails, whatever other overloads there are
};

// The IValue that PyTorch's binding makes of an argument's value; numbers may stand for tensors where it lets them. No
// Python error is set.
Conversion argument_as_pytorch(const c10::Argument& argument,
                               PyObject* value,
                               bool numbers_as_tensors,
                               c10::IValue& converted);

// What PyTorch's binding returns for the results on a stack, which are moved out of it. Throws PyTorch's errors.
PyRef stack_as_python(std::vector<c10::IValue>& stack);

// The IValues of a result that is already what its schema says. Throws PyTorch's errors.
std::vector<c10::IValue> to_ivalues(const c10::FunctionSchema& schema, PyObject* result);

// Inside a catch block: sets the Python error that PyTorch's binding of an operator sets for the exception in flight.
void set_python_error();

// What a caller sees of `result` after one Python kernel returned it: PyTorch's checks, conversions and errors.
// Null with a Python error set where PyTorch raises. One case is ours: more values than the schema has, where PyTorch
// 2.13 reads past the end of the schema and crashes.
PyRef result_through_kernel(const c10::FunctionSchema& schema, PyObject* result);

}  // namespace dutyfree::torch_compat
