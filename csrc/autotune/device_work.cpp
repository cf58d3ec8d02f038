#include "autotune/device_work.h"

#include <ATen/ATen.h>

#include <memory>

#include "torch_compat/cuda_stream.h"

namespace dutyfree::autotune {
namespace {

// More than the last cache of the GPUs that there are.
constexpr std::int64_t kDeviceSweep = 268'435'456;

}  // namespace

Work work_on(c10::Device device, std::function<void(int tactic)> run) {
  Work work{.run = std::move(run)};
  if (device.is_cpu()) {
    return work;
  }
  const torch_compat::CurrentStream stream(device);
  work.synchronise = [stream] { stream.synchronise(); };
  work.is_captured = [stream] { return stream.is_captured(); };
  // Made when the first cold run asks for it.
  const auto memory = std::make_shared<at::Tensor>();
  work.evict = [memory, device] {
    const at::AutoDispatchBelowADInplaceOrView below;
    if (!memory->defined()) {
      *memory = at::empty({kDeviceSweep}, at::TensorOptions(device).dtype(at::kByte));
    }
    memory->zero_();
  };
  return work;
}

}  // namespace dutyfree::autotune
