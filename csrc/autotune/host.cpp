#include "autotune/host.h"

#include <Python.h>

#include <torch/csrc/Exceptions.h>

#include <atomic>

#include "autotune/python_host.h"
#include "py_ref.h"
#include "torch_compat/gil.h"

namespace dutyfree::autotune::host {
namespace {

// The listener, or null. Guarded by the GIL.
PyObject* listener = nullptr;
std::atomic<bool> default_cache_done{false};

bool python_runs() { return Py_IsInitialized() != 0; }

// The GIL, for a thread that may have it already.
class WithGil {
 public:
  WithGil() : state_(PyGILState_Ensure()) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

[[noreturn]] void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

std::recursive_timed_mutex& measuring() {
  static auto* mutex = new std::recursive_timed_mutex();
  return *mutex;
}

}  // namespace

void show(const Progress& progress) {
  if (!python_runs()) {
    return;
  }
  const WithGil gil;
  if (const PyRef asked = PyRef::borrow(listener)) {
    const PyRef dims = python_dims(progress.dims);
    const PyRef answer =
        PyRef::steal(!dims ? nullptr
                           : PyObject_CallFunction(asked.get(), "ssOsnn", progress.op.c_str(),
                                                   progress.configuration.c_str(), dims.get(), progress.tactic.c_str(),
                                                   static_cast<Py_ssize_t>(progress.index),
                                                   static_cast<Py_ssize_t>(progress.count)));
    if (!answer) {
      throw_python_error();
    }
  }
  if (PyErr_CheckSignals() != 0) {
    throw_python_error();
  }
}

void let_signals_through() {
  if (!python_runs()) {
    return;
  }
  const WithGil gil;
  if (PyErr_CheckSignals() != 0) {
    throw_python_error();
  }
}

void warn(const std::string& text) {
  if (!python_runs()) {
    return;
  }
  const WithGil gil;
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) {
    throw_python_error();
  }
}

void load_default_cache() {
  if (default_cache_done.exchange(true) || !python_runs()) {
    return;
  }
  const WithGil gil;
  const PyRef module = PyRef::steal(PyImport_ImportModule("dutyfree._tuning_cache"));
  const PyRef done = PyRef::steal(module ? PyObject_CallMethod(module.get(), "load_default", nullptr) : nullptr);
  if (!done) {
    throw_python_error();
  }
}

void skip_default_cache() noexcept { default_cache_done.store(true); }

bool is_about_the_candidate(const std::exception& error) {
  const auto* raised = dynamic_cast<const python_error*>(&error);
  if (raised == nullptr || !python_runs()) {
    return true;
  }
  const WithGil gil;
  return PyErr_GivenExceptionMatches(raised->type, PyExc_Exception) != 0;
}

MeasuringTurn::MeasuringTurn(std::chrono::milliseconds limit) : lock_(measuring(), std::try_to_lock) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!lock_ && std::chrono::steady_clock::now() < end) {
    {
      // The thread that measures may need the GIL to get on.
      std::optional<torch_compat::GilReleased> released;
      if (python_runs() && PyGILState_Check() != 0) {
        released.emplace();
      }
      (void)lock_.try_lock_for(std::chrono::milliseconds(50));
    }
    let_signals_through();
  }
}

}  // namespace dutyfree::autotune::host

namespace dutyfree::autotune {

PyRef python_dims(std::span<const std::int64_t> dims) {
  PyRef tuple = PyRef::steal(PyTuple_New(static_cast<Py_ssize_t>(dims.size())));
  for (std::size_t index = 0; tuple && index < dims.size(); ++index) {
    PyObject* dim = PyLong_FromLongLong(dims[index]);
    if (dim == nullptr) {
      return {};
    }
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(index), dim);
  }
  return tuple;
}

PyRef set_progress(PyObject* callable) {
  return PyRef::steal(std::exchange(host::listener, PyRef::borrow(callable).release()));
}

}  // namespace dutyfree::autotune
