#pragma once

namespace dutyfree::torch_compat {

// An operator's entry in the dispatcher caches the OpOverload that stands for it in Python. PyTorch relies on the entry
// dying with the operator; a pinned entry (see call::Operator) lives on, and a new definition of the name gets it with
// the old OpOverload in it, which modes and functionalisation would then see: a stale schema, or freed memory. From
// this call on, the cache of every operator is emptied when its definition goes. Called once, when the module is
// loaded.
void forget_python_handles_of_lost_definitions();

}  // namespace dutyfree::torch_compat
