#include "torch_compat/thread_state.h"

namespace dutyfree::torch_compat {

thread_local constinit ThreadState ThreadState::here_;

void ThreadState::locate() {
  keys_ = &c10::impl::raw_local_dispatch_key_set;
  autograd_ = &c10::AutogradState::get_tls_state();
  functions_ = &at::impl::PythonTorchFunctionTLS::get_state();
  modes_ = &c10::impl::TorchDispatchModeTLS::get_state();
}

}  // namespace dutyfree::torch_compat
