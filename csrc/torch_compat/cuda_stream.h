#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

// torch's CUDA streams, without its CUDA headers, which need a toolkit.
namespace dutyfree::torch_compat {

// The cudaStream_t that PyTorch's own kernels on this CUDA device go to now, from this thread.
inline void* current_cuda_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace dutyfree::torch_compat
