#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "call/known_kernels.h"
#include "call/route.h"
#include "call/signature.h"
#include "observe/counters.h"

namespace dutyfree::call {

// All that the direct path keeps of one operator. The Python object `_core.Operator` owns it, the callables put in
// front of the operator share that object; every member needs the GIL.
class Operator {
 public:
  // Throws where the dispatcher has no such operator; null with a Python error set where Python fails.
  static std::unique_ptr<Operator> find(const std::string& name);
  ~Operator();

  // Forgets the kernels of all operators that are lost: they hold what the operators' bodies hold.
  static void forget_lost();

  const c10::impl::OperatorEntry& entry() const { return entry_; }
  const c10::FunctionSchema& schema() const { return schema_; }
  const Signature& signature() const { return signature_; }
  const std::string& name() const { return name_; }

  // Tag.inplace returns its first argument, Tag.out its mutated keyword-only ones; the others may alias nothing.
  bool returns_mutated() const { return returns_mutated_; }
  bool returns_out() const { return returns_out_; }
  // Slots of the arguments that `returns_mutated` operators return.
  const std::vector<std::uint8_t>& returned_slots() const { return returned_slots_; }
  // Whether calls that are not direct may be boxed here. Decided when the operator is set up.
  bool may_box() const { return may_box_; }
  void allow_boxing() { may_box_ = signature_.complete(); }
  // Whether numbers may stand for tensors, as they may in PyTorch's own operators.
  bool takes_numbers_as_tensors() const { return takes_numbers_as_tensors_; }
  // The operator was destroyed, or another one has its name by now.
  bool lost() const { return lost_->load(std::memory_order_relaxed); }
  const c10::OperatorHandle& handle() const { return handle_; }

  // Why no call can be direct, or null.
  const char* unsupported() const { return unsupported_.empty() ? nullptr : unsupported_.c_str(); }

  // Adds a kernel to the known ones if it is one of dutyfree/op.h whose parameters are made here.
  void know_if_direct(const c10::KernelFunction& kernel);
  KnownKernels& kernels() { return kernels_; }
  const KnownKernels& kernels() const { return kernels_; }
  Route& route() { return route_; }
  observe::Counters& counters() { return counters_; }

 private:
  Operator(const c10::OperatorHandle& handle, Signature signature);
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  c10::OperatorHandle handle_;
  // A handle does not own its entry. This does, so a callable that outlives its library finds an entry without
  // kernels, not freed memory.
  c10::RegistrationHandleRAII pin_;
  const c10::impl::OperatorEntry& entry_;
  c10::FunctionSchema schema_;  // a copy: the entry's own goes with the library
  Signature signature_;
  std::string name_;
  bool returns_mutated_ = false;
  bool returns_out_ = false;
  bool returns_view_ = false;
  bool may_box_ = false;
  bool takes_numbers_as_tensors_ = false;
  std::shared_ptr<const std::atomic<bool>> lost_;
  std::vector<std::uint8_t> returned_slots_;
  std::string unsupported_;
  KnownKernels kernels_;
  Route route_;  // the last one walked
  observe::Counters counters_;
};

}  // namespace dutyfree::call
