#pragma once

#include <c10/core/Device.h>

#include "autotune/measure.h"

namespace dutyfree::autotune {

// Work whose tensors are on a device: waits for what the device's current stream was given, and empties the device's
// caches. For the CPU there is nothing to wait for.
Work work_on(c10::Device device, std::function<void(int tactic)> run);

}  // namespace dutyfree::autotune
