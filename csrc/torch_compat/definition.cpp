#include "torch_compat/definition.h"

#include <Python.h>

#include <mutex>
#include <unordered_map>

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

// The flags of the definitions that someone watches. Guarded by its mutex, which is taken last: the dispatcher calls
// with its own lock held.
class WatchedDefinitions {
 public:
  std::shared_ptr<const std::atomic<bool>> flag(const c10::impl::OperatorEntry* entry) {
    const std::scoped_lock lock(mutex_);
    auto& flag = flags_[entry];
    if (flag == nullptr) {
      flag = std::make_shared<std::atomic<bool>>(false);
    }
    return flag;
  }

  // Whether anyone watched.
  bool lose(const c10::impl::OperatorEntry* entry) {
    const std::scoped_lock lock(mutex_);
    const auto found = flags_.find(entry);
    if (found == flags_.end()) {
      return false;
    }
    found->second->store(true);
    flags_.erase(found);
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const c10::impl::OperatorEntry*, std::shared_ptr<std::atomic<bool>>> flags_;
};

// Never destroyed: definitions may go until the process ends.
WatchedDefinitions& watched_definitions() {
  static auto* watched = new WatchedDefinitions();
  return *watched;
}

void (*on_definition_loss)() = nullptr;

// Called under the dispatcher's lock, with or without the GIL.
class DefinitionListener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    const c10::impl::OperatorEntry& entry = operator_entry(op);
    // The member is declared mutable, so nothing const is written to.
    const_cast<std::atomic<PyObject*>&>(cached_handle(python_handle_cache(entry)))
        .store(nullptr, std::memory_order_release);
    if (watched_definitions().lose(&entry) && Py_IsInitialized() != 0) {
      // Where the queue is full, an earlier request does this one's work.
      (void)Py_AddPendingCall(
          [](void*) {
            on_definition_loss();
            return 0;
          },
          nullptr);
    }
  }
};

}  // namespace

void listen_for_lost_definitions(void (*on_loss)()) {
  on_definition_loss = on_loss;
  // Never taken back: definitions may go until the process ends.
  static const auto* listening =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton()
                                          .addRegistrationListener(std::make_unique<DefinitionListener>()));
  static_cast<void>(listening);
}

std::shared_ptr<const std::atomic<bool>> definition_lost(const c10::OperatorHandle& op) {
  return watched_definitions().flag(&operator_entry(op));
}

}  // namespace dutyfree::torch_compat
