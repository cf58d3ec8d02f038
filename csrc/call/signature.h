#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "py_ref.h"

namespace dutyfree::call {

// PyTorch's dispatcher accepts no operator with more arguments.
inline constexpr std::size_t kMaxArguments = 64;

enum class ValueKind : std::uint8_t {
  Tensor,
  Int,
  Float,
  Bool,
  Str,
  Scalar,
  DType,
  Device,
  Layout,
  MemoryFormat,
  Other
};

// How a value of one schema type is recognised.
struct ValueType {
  ValueKind kind = ValueKind::Other;        // Other: no body gets such a value directly
  ValueKind boxed_kind = ValueKind::Other;  // Other: PyTorch boxes it
  bool is_tensor = false;                   // one tensor, neither a list nor optional
  bool list = false;
  bool optional = false;          // None may stand for the value
  bool optional_element = false;  // None may stand for an element of the list
};

struct Slot {
  ValueType type;
  bool has_default = false;
  PyRef name;           // interned
  PyRef default_value;  // as a body would see it; a list is copied before a body gets it
  // As FunctionSchema shows it, which is what setup_context sees (the number of a dtype, …); a list is copied as well.
  PyRef schema_default;
};

// A schema compiled once, when an operator is set up. Immutable afterwards, so any thread may read it under the GIL.
class Signature {
 public:
  // Null with a Python error set when a default has no Python form.
  static std::optional<Signature> compile(const c10::FunctionSchema& schema);

  const std::vector<Slot>& slots() const { return slots_; }
  const std::vector<ValueType>& results() const { return results_; }
  // Slots before this index are positional (or named), those from it on are keyword-only.
  std::size_t positional_count() const { return positional_count_; }
  bool has_positional_defaults() const { return has_positional_defaults_; }
  // Slots from this index on have defaults: a call by position that reaches it leaves out nothing that it must have.
  std::size_t required_count() const { return required_count_; }
  // Whether the result is one tensor.
  bool returns_tensor() const { return returns_tensor_; }
  // Whether it is one list of tensors.
  bool returns_tensor_list() const { return returns_tensor_list_; }
  // Slots that hold tensors or lists of tensors, and those of them that the schema says are mutated.
  const std::vector<std::uint8_t>& tensor_slots() const { return tensor_slots_; }
  const std::vector<std::uint8_t>& mutated_slots() const { return mutated_slots_; }
  // The positional ones of the tensor slots: custom_op records gradients for no others.
  const std::vector<std::uint8_t>& gradient_slots() const { return gradient_slots_; }
  // Whether results may nest tuples, which PyTorch takes apart as well when it records a gradient.
  bool results_may_nest() const { return results_may_nest_; }
  // Whether every result is one exact Python object, which no kernel on the way up would replace.
  bool results_are_plain() const { return results_are_plain_; }
  // False where the slots don't describe the schema: it has more arguments than the dispatcher takes.
  bool complete() const { return complete_; }
  // The first argument or result without a direct path ("argument x: Dict(str, int)"), empty when all have one.
  const std::string& unsupported() const { return unsupported_; }

 private:
  std::vector<Slot> slots_;
  std::vector<ValueType> results_;
  std::size_t positional_count_ = 0;
  std::size_t required_count_ = 0;
  std::vector<std::uint8_t> tensor_slots_;
  std::vector<std::uint8_t> mutated_slots_;
  std::vector<std::uint8_t> gradient_slots_;
  bool complete_ = false;
  bool has_positional_defaults_ = false;
  bool returns_tensor_ = false;
  bool returns_tensor_list_ = false;
  bool results_may_nest_ = false;
  bool results_are_plain_ = true;
  std::string unsupported_;
};

}  // namespace dutyfree::call
