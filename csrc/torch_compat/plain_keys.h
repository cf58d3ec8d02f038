#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dutyfree::torch_compat {

// For a kernel that calls PyTorch's operators: for its lifetime they record no gradient, bump no version and are not
// cast by autocast, whatever the caller has switched on.
class PlainKeys {
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

}  // namespace dutyfree::torch_compat
