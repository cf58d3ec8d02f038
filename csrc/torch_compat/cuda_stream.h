#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

// The streams of CUDA and other devices, without torch's CUDA headers, which need a toolkit.
namespace dutyfree::torch_compat {

// The cudaStream_t that PyTorch's own kernels on this CUDA device go to now, from this thread.
inline void* current_cuda_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

// The stream that PyTorch's own kernels on a device go to, from the thread that asks.
class CurrentStream {
 public:
  explicit CurrentStream(c10::Device device) : device_(device), guard_(device.type()) {}

  // Waits until the device has done all that the stream was given.
  void synchronise() const { guard_.synchronizeStream(guard_.getStream(device_)); }
  // Whether what it is given is only recorded, for a graph: then nothing may wait for it.
  bool is_captured() const { return guard_.isStreamCapturing(guard_.getStream(device_)); }

 private:
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
};

}  // namespace dutyfree::torch_compat
