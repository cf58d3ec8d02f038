#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dutyfree::observe {

enum class Path : std::uint8_t { Direct, Autograd, Boxed, PyTorch };
inline constexpr std::array<const char*, 4> kPathNames = {"direct", "autograd", "boxed", "pytorch"};

// Why a call left the direct path. The names are public: stats() and explain() use them, and explain.py has a
// sentence for each.
enum class Reason : std::uint8_t {
  None,
  Disabled,
  Schema,
  TorchFunctionMode,
  DispatchMode,
  ThreadState,
  ArgumentCount,
  ArgumentName,
  ArgumentType,
  TensorSubclass,
  TensorKey,
  RequiresGrad,
  OutGradient,
  GradientForm,
  PatchedApply,
  Kernel,
  InferenceMutation,
  CppKernel,
  Redefined,
  TorchFunctionArgument,
  ArgumentMismatch,
};
inline constexpr std::array<const char*, 21> kReasonNames = {
    "",
    "disabled",
    "schema",
    "torch-function-mode",
    "dispatch-mode",
    "thread-state",
    "argument-count",
    "argument-name",
    "argument-type",
    "tensor-subclass",
    "tensor-key",
    "requires-grad",
    "out-gradient",
    "gradient-form",
    "patched-apply",
    "kernel",
    "inference-mutation",
    "cpp-kernel",
    "redefined",
    "torch-function-argument",
    "argument-mismatch",
};
static_assert(kReasonNames.size() == static_cast<std::size_t>(Reason::ArgumentMismatch) + 1);

inline const char* name(Path path) { return kPathNames[static_cast<std::size_t>(path)]; }
inline const char* name(Reason reason) { return kReasonNames[static_cast<std::size_t>(reason)]; }

}  // namespace dutyfree::observe
