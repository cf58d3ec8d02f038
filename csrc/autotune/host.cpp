#include "autotune/host.h"

#include <Python.h>

#include <pthread.h>
#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <thread>

#include "autotune/python_host.h"
#include "autotune/tuning_mode.h"
#include "py_ref.h"
#include "torch_compat/gil.h"

namespace dutyfree::autotune::host {
namespace {

// The listeners by context; null for none. Guarded by the GIL. Never destroyed: the interpreter may be gone by then.
using Listeners = std::map<std::uint64_t, PyRef>;
Listeners* listeners = new Listeners();

// The default cache: read by `reader`, while others wait at `ended`.
struct DefaultCache {
  std::atomic<bool> done{false};
  std::mutex mutex;
  std::condition_variable ended;
  std::thread::id reader;  // none: no thread
};
DefaultCache* default_cache = new DefaultCache();
// A reader that waits for a thread that waits for it would else never end.
constexpr std::chrono::seconds kLongestRead{60};

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

std::recursive_timed_mutex* measuring = new std::recursive_timed_mutex();

// Only the thread that forked exists in the child, perhaps with these in the hands of another: they are left as they
// are and replaced.
void forget_other_threads() {
  measuring = new std::recursive_timed_mutex();
  auto* cache = new DefaultCache();
  cache->done.store(default_cache->done.load());
  default_cache = cache;
  listeners = new Listeners();
  end_tuning_after_fork();
}

// The reader's turn to read, from when it is made until it is destroyed.
class Reading {
 public:
  // False where it is done, or another thread read it meanwhile, or this very thread is reading it.
  explicit operator bool() const { return reads_; }

  Reading() {
    DefaultCache& cache = *default_cache;
    const auto end = std::chrono::steady_clock::now() + kLongestRead;
    while (!cache.done.load() && std::chrono::steady_clock::now() < end) {
      {
        // Before the lock, so that no thread waits for the GIL with it.
        std::optional<torch_compat::GilReleased> released;
        if (python_runs() && PyGILState_Check() != 0) {
          released.emplace();
        }
        std::unique_lock lock(cache.mutex);
        if (cache.reader == std::this_thread::get_id() || cache.done.load()) {
          return;
        }
        if (cache.reader == std::thread::id()) {
          cache.reader = std::this_thread::get_id();
          reads_ = true;
          return;
        }
        (void)cache.ended.wait_for(lock, std::chrono::milliseconds(50));
      }
      let_signals_through();
    }
  }
  ~Reading() {
    if (reads_) {
      const std::lock_guard lock(default_cache->mutex);
      default_cache->done.store(true);
      default_cache->reader = {};
      default_cache->ended.notify_all();
    }
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  bool reads_ = false;
};

// What kept the default cache from being read is no matter of the call: a warning. Throws the rest.
void warn_of_python_error() {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0 || PyErr_ExceptionMatches(PyExc_Warning) != 0) {
    throw_python_error();
  }
  python_error error;
  error.persist();
  warn(std::string("the default tuning cache is not used: ") + error.what());
}

}  // namespace

void show(const Progress& progress) {
  if (!python_runs()) {
    return;
  }
  const WithGil gil;
  if (const PyRef asked = PyRef::borrow(listeners->empty() ? nullptr : listeners->rbegin()->second.get())) {
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
  if (default_cache->done.load() || !python_runs()) {
    return;
  }
  const Reading reading;
  if (!reading) {
    return;
  }
  const WithGil gil;
  const PyRef module = PyRef::steal(PyImport_ImportModule("dutyfree._tuning_cache"));
  const PyRef done = PyRef::steal(module ? PyObject_CallMethod(module.get(), "load_default", nullptr) : nullptr);
  if (!done) {
    warn_of_python_error();
  }
}

void skip_default_cache() noexcept { default_cache->done.store(true); }

void watch_forks() { (void)pthread_atfork(nullptr, nullptr, forget_other_threads); }

bool is_about_the_candidate(const std::exception& error) {
  const auto* raised = dynamic_cast<const python_error*>(&error);
  if (raised == nullptr || !python_runs()) {
    return true;
  }
  const WithGil gil;
  return PyErr_GivenExceptionMatches(raised->type, PyExc_Exception) != 0;
}

MeasuringTurn::MeasuringTurn(std::chrono::milliseconds limit) : lock_(*measuring, std::try_to_lock) {
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

void add_progress(std::uint64_t context, PyObject* callable) { (*host::listeners)[context] = PyRef::borrow(callable); }

PyRef remove_progress(std::uint64_t context) {
  const auto found = host::listeners->find(context);
  if (found == host::listeners->end()) {
    return {};
  }
  PyRef listener = std::move(found->second);
  host::listeners->erase(found);
  return listener;
}

}  // namespace dutyfree::autotune
