#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>

// Mistakes made on purpose, one at a time, to see that the checks find them. They exist only in a build with
// DUTYFREE_SEEDED_FAULTS, which takes the mistake to make from the environment variable DUTYFREE_FAULT. In every other
// build seeded() is a constant, and nothing of this reaches the compiled code.
namespace dutyfree {

// Each fault, and how DUTYFREE_FAULT spells it. Those of memory come last: no check of values has to find them, the
// sanitizers have.
#define DUTYFREE_BEHAVIOUR_FAULTS(FAULT)                          \
  FAULT(IncludedKeyIgnored, "included-key-ignored")               \
  FAULT(ExcludedKeyIgnored, "excluded-key-ignored")               \
  FAULT(FunctionModeIgnored, "function-mode-ignored")             \
  FAULT(ReplacedKernelIgnored, "replaced-kernel-ignored")         \
  FAULT(DisabledKernelIgnored, "disabled-kernel-ignored")         \
  FAULT(ListGradientIgnored, "list-gradient-ignored")             \
  FAULT(InferenceMutationAllowed, "inference-mutation-allowed")   \
  FAULT(KeywordMisplaced, "keyword-misplaced")                    \
  FAULT(NoneAccepted, "none-accepted")                            \
  FAULT(IntUnconverted, "int-unconverted")                        \
  FAULT(ListUncopied, "list-uncopied")                            \
  FAULT(DefaultsPassed, "defaults-passed")                        \
  FAULT(VersionBumpSkipped, "version-bump-skipped")               \
  FAULT(BodyNotBelowAutograd, "body-not-below-autograd")          \
  FAULT(ExceptionKeepsKeys, "exception-keeps-keys")               \
  FAULT(InputAliasUnchecked, "input-alias-unchecked")             \
  FAULT(OutputAliasUnchecked, "output-alias-unchecked")           \
  FAULT(ReturnedArgumentUnchecked, "returned-argument-unchecked") \
  FAULT(TupleKept, "tuple-kept")                                  \
  FAULT(ResultListShared, "result-list-shared")                   \
  FAULT(ContextListShared, "context-list-shared")                 \
  FAULT(ContextDefaultConverted, "context-default-converted")     \
  FAULT(ContextNotBelowAutograd, "context-not-below-autograd")    \
  FAULT(NeedsInputGradWhole, "needs-input-grad-whole")
#define DUTYFREE_MEMORY_FAULTS(FAULT)          \
  FAULT(ListReadPastEnd, "list-read-past-end") \
  FAULT(KernelUnheld, "kernel-unheld")         \
  FAULT(ShiftTooFar, "shift-too-far")

#define DUTYFREE_ENUMERATOR(name, text) name,
enum class Fault : std::uint8_t {
  None,
  DUTYFREE_BEHAVIOUR_FAULTS(DUTYFREE_ENUMERATOR) DUTYFREE_MEMORY_FAULTS(DUTYFREE_ENUMERATOR)
};
#undef DUTYFREE_ENUMERATOR

#ifdef DUTYFREE_SEEDED_FAULTS

inline Fault seeded_fault = Fault::None;  // written once, when the module is imported
inline bool seeded(Fault fault) { return seeded_fault == fault; }

// Reads DUTYFREE_FAULT and gives the module `seeded_faults`. False with a Python error set for a name that is no fault.
bool choose_seeded_fault(PyObject* module);

#else

constexpr bool seeded(Fault) { return false; }
constexpr bool choose_seeded_fault(PyObject*) { return true; }

#endif

}  // namespace dutyfree
