#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>

// Mistakes made on purpose, one at a time, to see that the checks find them. They exist only in a build with
// DUTYFREE_SEEDED_FAULTS, which takes the mistake to make from the environment variable DUTYFREE_FAULT. In every other
// build seeded() is a constant, and nothing of this reaches the compiled code.
namespace dutyfree::observe {

enum class Fault : std::uint8_t {
  None,
  // What thread and table say.
  IncludedKeyIgnored,
  ExcludedKeyIgnored,
  FunctionModeIgnored,
  ReplacedKernelIgnored,
  DisabledKernelIgnored,
  ListGradientIgnored,
  InferenceMutationAllowed,
  // Arguments.
  KeywordMisplaced,
  NoneAccepted,
  IntUnconverted,
  ListUncopied,
  DefaultsPassed,
  // Around the body.
  VersionBumpSkipped,
  BodyNotBelowAutograd,
  ExceptionKeepsKeys,
  // Results.
  InputAliasUnchecked,
  OutputAliasUnchecked,
  ReturnedArgumentUnchecked,
  TupleKept,
  ResultListShared,
  // Gradients.
  ContextListShared,
  ContextDefaultConverted,
  ContextNotBelowAutograd,
  NeedsInputGradWhole,
  // For the sanitizers: no check of values has to find these.
  ListReadPastEnd,
  KernelUnheld,
  ShiftTooFar,
};

// As DUTYFREE_FAULT spells them.
inline constexpr std::array<const char*, 28> kFaultNames = {
    "",
    "included-key-ignored",
    "excluded-key-ignored",
    "function-mode-ignored",
    "replaced-kernel-ignored",
    "disabled-kernel-ignored",
    "list-gradient-ignored",
    "inference-mutation-allowed",
    "keyword-misplaced",
    "none-accepted",
    "int-unconverted",
    "list-uncopied",
    "defaults-passed",
    "version-bump-skipped",
    "body-not-below-autograd",
    "exception-keeps-keys",
    "input-alias-unchecked",
    "output-alias-unchecked",
    "returned-argument-unchecked",
    "tuple-kept",
    "result-list-shared",
    "context-list-shared",
    "context-default-converted",
    "context-not-below-autograd",
    "needs-input-grad-whole",
    "list-read-past-end",
    "kernel-unheld",
    "shift-too-far",
};
static_assert(kFaultNames.size() == static_cast<std::size_t>(Fault::ShiftTooFar) + 1);
// The names from this one on are the sanitizers' to find.
inline constexpr Fault kFirstMemoryFault = Fault::ListReadPastEnd;

#ifdef DUTYFREE_SEEDED_FAULTS

inline Fault seeded_fault = Fault::None;  // written once, when the module is imported
inline bool seeded(Fault fault) { return seeded_fault == fault; }

// Reads DUTYFREE_FAULT and gives the module `seeded_faults`. False with a Python error set for a name that is no fault.
bool choose_seeded_fault(PyObject* module);

#else

constexpr bool seeded(Fault) { return false; }
constexpr bool choose_seeded_fault(PyObject*) { return true; }

#endif

}  // namespace dutyfree::observe
