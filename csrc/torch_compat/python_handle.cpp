#include "torch_compat/python_handle.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>

#include "torch_compat/dispatch_table.h"

namespace dutyfree::torch_compat {

const c10::PyHandleCache& python_handle_cache(const c10::impl::OperatorEntry& entry);
template <auto Member>
struct PythonHandleCacheAccess {
  friend const c10::PyHandleCache& python_handle_cache(const c10::impl::OperatorEntry& entry) { return entry.*Member; }
};
template struct PythonHandleCacheAccess<&c10::impl::OperatorEntry::py_cache_>;

const std::atomic<PyObject*>& cached_handle(const c10::PyHandleCache& cache);
template <auto Member>
struct CachedHandleAccess {
  friend const std::atomic<PyObject*>& cached_handle(const c10::PyHandleCache& cache) { return cache.*Member; }
};
template struct CachedHandleAccess<&c10::PyHandleCache::data_>;

namespace {

// Called under the dispatcher's lock, with or without the GIL.
class DefinitionListener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    // The member is declared mutable, so nothing const is written to.
    const_cast<std::atomic<PyObject*>&>(cached_handle(python_handle_cache(operator_entry(op))))
        .store(nullptr, std::memory_order_release);
  }
};

}  // namespace

void forget_python_handles_of_lost_definitions() {
  // Never taken back: definitions may go until the process ends.
  static const auto* listening =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton()
                                          .addRegistrationListener(std::make_unique<DefinitionListener>()));
  static_cast<void>(listening);
}

}  // namespace dutyfree::torch_compat
