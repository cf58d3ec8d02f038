#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <memory>

// What has to happen when an operator's definition goes: its Library is destroyed, or a redefinition replaces it.
namespace dutyfree::torch_compat {

// Starts to listen; called once, when the module is loaded. `on_loss` is called after definitions went, with the GIL,
// as soon as the main thread runs Python code.
//
// From then on the OpOverload that an operator's entry in the dispatcher caches is dropped when the definition goes.
// PyTorch relies on the entry dying with the operator; a pinned entry (see call::Operator) lives on, and a new
// definition of the name gets it with the old OpOverload in it, which modes and functionalisation would then see: a
// stale schema, or freed memory.
void listen_for_lost_definitions(void (*on_loss)());

// Becomes true, for good, when the operator's present definition goes. Any thread may read it.
std::shared_ptr<const std::atomic<bool>> definition_lost(const c10::OperatorHandle& op);

}  // namespace dutyfree::torch_compat
