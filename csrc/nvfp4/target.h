#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nvfp4/kernels.h"

// Which CPU kernels run: those for the best instruction set that this machine has, or the one that was asked for.
namespace dutyfree::nvfp4 {

// What this machine can run, the best last.
const std::vector<const Kernels*>& available_targets();
std::vector<std::string> target_names();

// The best one, or what force_target was last given.
const Kernels& chosen_target();
// The forced one, or null.
const Kernels* forced_target();

// From now on only this target's kernels run, in all threads; with an empty name the best again. Throws c10::ValueError
// for a target that does not exist or that this machine can't run.
void force_target(std::string_view name);

}  // namespace dutyfree::nvfp4
