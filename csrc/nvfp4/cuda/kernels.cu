#include "nvfp4/cuda/kernels.h"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nvfp4/cuda/blocks.h"
#include "nvfp4/format.h"

namespace dutyfree::nvfp4::cuda {
namespace {

constexpr int kThreads = 256;

// The device that launches go to, until the end of the scope. It is the same one that torch takes as current, so it has
// to be put back.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    error_ = cudaGetDevice(&previous_);
    if (error_ == cudaSuccess && previous_ != device) {
      error_ = cudaSetDevice(device);
      changed_ = error_ == cudaSuccess;
    }
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(previous_);
  }
  cudaError_t error() const { return error_; }

 private:
  int previous_ = 0;
  bool changed_ = false;
  cudaError_t error_;
};

template <typename Index>
__device__ Index thread_number() {
  return static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
}

template <int kDtype, bool kSwizzled, typename Index>
__global__ void __launch_bounds__(kThreads) quantize_blocks(const DutyfreeNvfp4Quantize call) {
  const auto thread = thread_number<Index>();
  if (thread < quantize_threads<kSwizzled>(call)) quantize_thread<kDtype, kSwizzled>(call, thread);
}

template <int kDtype, bool kSwizzled, typename Index>
__global__ void __launch_bounds__(kThreads) dequantize_blocks(const DutyfreeNvfp4Dequantize call) {
  const auto thread = thread_number<Index>();
  if (thread < dequantize_threads(call)) dequantize_thread<kDtype, kSwizzled>(call, thread);
}

// `narrow` counts threads in 32 bits, `wide` in 64. A grid has at most 2^31 - 1 groups of threads, for 2^43 elements.
template <typename Call>
cudaError_t launch(const Call& call, std::int64_t threads, void (*narrow)(Call), void (*wide)(Call)) {
  if (threads == 0) return cudaSuccess;  // an empty grid would be an error
  const std::int64_t groups = (threads + kThreads - 1) / kThreads;
  if (groups > INT32_MAX) return cudaErrorInvalidValue;
  const auto kernel = groups * kThreads <= UINT32_MAX ? narrow : wide;
  kernel<<<static_cast<unsigned>(groups), kThreads, 0, static_cast<cudaStream_t>(call.stream)>>>(call);
  return cudaGetLastError();
}

template <int kDtype, bool kSwizzled>
cudaError_t launch(const DutyfreeNvfp4Quantize& call) {
  return launch(call, quantize_threads<kSwizzled>(call), quantize_blocks<kDtype, kSwizzled, std::uint32_t>,
                quantize_blocks<kDtype, kSwizzled, std::uint64_t>);
}

template <int kDtype, bool kSwizzled>
cudaError_t launch(const DutyfreeNvfp4Dequantize& call) {
  return launch(call, dequantize_threads(call), dequantize_blocks<kDtype, kSwizzled, std::uint32_t>,
                dequantize_blocks<kDtype, kSwizzled, std::uint64_t>);
}

template <int kDtype, typename Call>
cudaError_t launch_on_device(const Call& call) {
  const CurrentDevice device(call.device);
  if (device.error() != cudaSuccess) return device.error();
  return call.swizzled != 0 ? launch<kDtype, true>(call) : launch<kDtype, false>(call);
}

bool is_aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

bool has_blocks(std::int64_t rows, std::int64_t columns) { return rows >= 0 && columns >= 0 && columns % kBlock == 0; }

}  // namespace
}  // namespace dutyfree::nvfp4::cuda

#define DUTYFREE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace dutyfree::nvfp4::cuda;  // NOLINT(google-build-using-namespace): nothing but the interface follows

DUTYFREE_EXPORT int dutyfree_nvfp4_interface() { return DUTYFREE_NVFP4_CUDA_INTERFACE; }

DUTYFREE_EXPORT const char* dutyfree_nvfp4_error_text(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

DUTYFREE_EXPORT int dutyfree_nvfp4_capability(int device, int* capability) {
  int major = 0;
  int minor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  *capability = 10 * major + minor;
  return error;
}

DUTYFREE_EXPORT int dutyfree_nvfp4_quantize(const DutyfreeNvfp4Quantize* call) {
  if (!has_blocks(call->rows, call->columns)) return cudaErrorInvalidValue;
  if (!is_aligned(call->input, 16) || !is_aligned(call->values, 8)) return cudaErrorMisalignedAddress;
  switch (call->dtype) {
    case kDutyfreeFloat32:
      return launch_on_device<kDutyfreeFloat32>(*call);
    case kDutyfreeFloat16:
      return launch_on_device<kDutyfreeFloat16>(*call);
    case kDutyfreeBFloat16:
      return launch_on_device<kDutyfreeBFloat16>(*call);
    case kDutyfreeFloat8E4M3:
      return launch_on_device<kDutyfreeFloat8E4M3>(*call);
    default:
      return cudaErrorInvalidValue;
  }
}

DUTYFREE_EXPORT int dutyfree_nvfp4_dequantize(const DutyfreeNvfp4Dequantize* call) {
  if (!has_blocks(call->rows, call->columns)) return cudaErrorInvalidValue;
  if (!is_aligned(call->values, 8) || !is_aligned(call->output, 16)) return cudaErrorMisalignedAddress;
  switch (call->dtype) {
    case kDutyfreeFloat32:
      return launch_on_device<kDutyfreeFloat32>(*call);
    case kDutyfreeFloat16:
      return launch_on_device<kDutyfreeFloat16>(*call);
    case kDutyfreeBFloat16:
      return launch_on_device<kDutyfreeBFloat16>(*call);
    default:
      return cudaErrorInvalidValue;
  }
}
