#include "torch_compat/conversion.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace py = pybind11;

namespace dutyfree::torch_compat {
namespace {

bool holds_kind(const c10::TypePtr& type, c10::TypeKind kind) {
  if (type->kind() == kind) {
    return true;
  }
  const auto optional = type->cast<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == kind;
}

torch::jit::Stack to_stack(const c10::FunctionSchema& schema, const py::object& result) {
  const auto& returns = schema.returns();
  torch::jit::Stack stack;
  if (returns.empty()) {
    TORCH_CHECK(result.is_none(), "Expected PythonKernelHolder for ", schema.operator_name(),
                " to return None but it returned something else instead.");
    return stack;
  }
  if (returns.size() == 1) {
    stack.push_back(torch::jit::toIValue(result, returns[0].real_type()));
    return stack;
  }
  const auto values = py::cast<py::sequence>(result);
  const std::size_t count = values.size();
  TORCH_CHECK(count <= returns.size(), "Expected the kernel of ", schema.operator_name(), " to return ", returns.size(),
              " values, as its schema says, but it returned ", count, ". Schema: ", schema);
  for (std::size_t index = 0; index < count; ++index) {
    stack.push_back(torch::jit::toIValue(py::object(values[index]), returns[index].real_type()));
  }
  return stack;
}

}  // namespace

void set_python_error() {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (py::builtin_exception& error) {
    error.set_error();
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
    // The standard library's as pybind11 translates them.
  } catch (const std::bad_alloc& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (const std::domain_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::length_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const std::range_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::overflow_error& error) {
    PyErr_SetString(PyExc_OverflowError, error.what());
  } catch (const std::exception&) {
    torch::translate_exception_to_python(std::current_exception());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "Caught an unknown exception!");
  }
}

c10::IValue to_ivalue(const c10::Argument& argument, PyObject* value) {
  if (value != nullptr) {
    return torch::jit::toIValue(value, argument.real_type(), argument.N());
  }
  return argument.default_value().value_or(c10::IValue());
}

Conversion argument_as_pytorch(const c10::Argument& argument,
                               PyObject* value,
                               bool numbers_as_tensors,
                               c10::IValue& converted) {
  // The exceptions that torch::jit::argumentToIValue makes a schema_match_error of.
  try {
    const torch::jit::ToIValueAllowNumbersAsTensors guard(numbers_as_tensors);
    converted = torch::jit::toIValue(value, argument.real_type(), argument.N());
    return Conversion::Done;
  } catch (const py::cast_error&) {
    return Conversion::Mismatch;
  } catch (const py::error_already_set&) {
    return Conversion::Mismatch;
  } catch (...) {
    set_python_error();
    PyErr_Clear();
    return Conversion::Failed;
  }
}

namespace {

// As torch::jit::toPyObject does it, which looks up pybind11's state for each of the tensors.
PyRef list_as_python(const c10::IValue& tensors) {
  const c10::List<at::Tensor> list = tensors.toTensorList();
  PyRef result = PyRef::steal(PyList_New(static_cast<Py_ssize_t>(list.size())));
  for (std::size_t index = 0; result && index < list.size(); ++index) {
    PyObject* item = THPVariable_Wrap(list.get(index));
    if (item == nullptr) {
      return {};
    }
    PyList_SET_ITEM(result.get(), static_cast<Py_ssize_t>(index), item);
  }
  return result;
}

}  // namespace

PyRef stack_as_python(std::vector<c10::IValue>& stack) {
  if (stack.size() == 1 && stack[0].isTensor() &&
      stack[0].unsafeToTensorImpl() != c10::UndefinedTensorImpl::singleton()) {
    return PyRef::steal(THPVariable_Wrap(std::move(stack[0]).toTensor()));
  }
  if (stack.size() == 1 && stack[0].isTensorList()) {
    return list_as_python(stack[0]);
  }
  return PyRef::steal(torch::jit::createPyObjectForStack(std::move(stack)).release().ptr());
}

std::vector<c10::IValue> to_ivalues(const c10::FunctionSchema& schema, PyObject* result) {
  return to_stack(schema, py::reinterpret_borrow<py::object>(result));
}

PyRef default_as_python(const c10::Argument& argument) {
  try {
    const c10::IValue value = argument.default_value().value_or(c10::IValue());
    if (!value.isNone() && holds_kind(argument.real_type(), c10::TypeKind::ScalarTypeType)) {
      auto* dtype = torch::getTHPDtype(static_cast<c10::ScalarType>(value.toInt()));
      return PyRef::borrow(reinterpret_cast<PyObject*>(dtype));
    }
    return default_as_schema_shows(argument);
  } catch (...) {
    set_python_error();
    return {};
  }
}

PyRef default_as_schema_shows(const c10::Argument& argument) {
  try {
    return PyRef::steal(torch::jit::toPyObject(argument.default_value().value_or(c10::IValue())).release().ptr());
  } catch (...) {
    set_python_error();
    return {};
  }
}

PyRef result_through_kernel(const c10::FunctionSchema& schema, PyObject* result) {
  try {
    auto stack = to_stack(schema, py::reinterpret_borrow<py::object>(result));
    return stack_as_python(stack);
  } catch (...) {
    set_python_error();
    return {};
  }
}

}  // namespace dutyfree::torch_compat
