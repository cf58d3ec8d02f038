#include "call/signature.h"

#include "torch_compat/conversion.h"

namespace dutyfree::call {
namespace {

ValueKind scalar_kind(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return ValueKind::Tensor;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return ValueKind::Int;
    case c10::TypeKind::FloatType:
      return ValueKind::Float;
    case c10::TypeKind::BoolType:
      return ValueKind::Bool;
    case c10::TypeKind::StringType:
      return ValueKind::Str;
    case c10::TypeKind::NumberType:
      return ValueKind::Scalar;
    case c10::TypeKind::ScalarTypeType:
      return ValueKind::DType;
    case c10::TypeKind::DeviceObjType:
      return ValueKind::Device;
    case c10::TypeKind::LayoutType:
      return ValueKind::Layout;
    case c10::TypeKind::MemoryFormatType:
      return ValueKind::MemoryFormat;
    default:
      return ValueKind::Other;
  }
}

ValueType value_type(const c10::TypePtr& type, bool broadcasts) {
  ValueType result;
  c10::TypePtr current = type;
  if (const auto optional = current->cast<c10::OptionalType>()) {
    result.optional = true;
    current = optional->getElementType();
  }
  if (const auto list = current->cast<c10::ListType>()) {
    result.list = true;
    current = list->getElementType();
    if (const auto optional = current->cast<c10::OptionalType>()) {
      result.optional_element = true;
      current = optional->getElementType();
    }
  }
  result.boxed_kind = scalar_kind(*current);
  result.is_tensor = result.boxed_kind == ValueKind::Tensor && !result.list && !result.optional;
  // int[2] takes a bare int as well: PyTorch repeats it. It repeats no tensor.
  const bool repeats = broadcasts && result.boxed_kind != ValueKind::Tensor;
  const bool direct =
      !repeats && result.boxed_kind != ValueKind::Layout && result.boxed_kind != ValueKind::MemoryFormat;
  result.kind = direct ? result.boxed_kind : ValueKind::Other;
  return result;
}

}  // namespace

std::optional<Signature> Signature::compile(const c10::FunctionSchema& schema) {
  Signature signature;
  const auto& arguments = schema.arguments();
  if (arguments.size() > kMaxArguments || schema.is_vararg() || schema.is_varret()) {
    signature.unsupported_ = "more arguments than the dispatcher takes";
    return signature;
  }
  for (const c10::Argument& argument : arguments) {
    Slot slot;
    slot.type = value_type(argument.real_type(), argument.N().has_value());
    slot.name = PyRef::steal(PyUnicode_InternFromString(argument.name().c_str()));
    if (!slot.name) {
      return std::nullopt;
    }
    if (argument.default_value().has_value()) {
      slot.has_default = true;
      signature.has_positional_defaults_ |= !argument.kwarg_only();
      if (slot.type.list && slot.type.kind == ValueKind::DType) {
        slot.type.kind = ValueKind::Other;  // PyTorch shows a body such a default as ints
      }
      slot.default_value = torch_compat::default_as_python(argument);
      slot.schema_default = torch_compat::default_as_schema_shows(argument);
      if (!slot.default_value || !slot.schema_default) {
        return std::nullopt;
      }
    }
    const auto index = static_cast<std::uint8_t>(signature.slots_.size());
    if (!argument.kwarg_only()) {
      signature.positional_count_ = index + 1U;
    }
    if (!slot.has_default) {
      signature.required_count_ = index + 1U;
    }
    if (slot.type.kind == ValueKind::Tensor) {
      signature.tensor_slots_.push_back(index);
      if (!argument.kwarg_only()) {
        signature.gradient_slots_.push_back(index);
      }
      if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
        signature.mutated_slots_.push_back(index);
      }
    }
    if (slot.type.kind == ValueKind::Other && signature.unsupported_.empty()) {
      signature.unsupported_ = "argument " + argument.name() + ": " + argument.real_type()->repr_str();
    }
    signature.slots_.push_back(std::move(slot));
  }
  for (const c10::Argument& result : schema.returns()) {
    const ValueType type = value_type(result.real_type(), false);
    signature.results_may_nest_ |= type.kind == ValueKind::Other;
    signature.results_are_plain_ &= !type.list && !type.optional && type.kind != ValueKind::Other;
    signature.results_.push_back(type);
  }
  const bool one = signature.results_.size() == 1 && signature.results_[0].kind == ValueKind::Tensor &&
                   !signature.results_[0].optional;
  signature.returns_tensor_ = one && !signature.results_[0].list;
  signature.returns_tensor_list_ = one && signature.results_[0].list;
  signature.complete_ = true;
  return signature;
}

}  // namespace dutyfree::call
