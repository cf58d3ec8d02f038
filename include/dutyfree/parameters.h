#pragma once

#include <ATen/core/List.h>
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymIntArrayRef.h>

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dutyfree/direct_kernel.h"

// From a Value to the C++ type that a kernel declares. Every specialisation of Convert has the form of the parameter
// and `get`, which makes what the kernel gets: a reference where that is all it needs.
#pragma GCC visibility push(hidden)
namespace dutyfree::detail {

using Kind = Parameter::Kind;

template <typename T>
inline constexpr bool always_false = false;

template <typename T>
struct Convert {
  static_assert(
      always_false<T>,
      "dutyfree: an operator's parameter can't have this type. It may be at::Tensor, int64_t, c10::SymInt, double, "
      "bool, std::string, std::string_view, at::Scalar, at::ScalarType, at::Device, at::Layout, at::MemoryFormat, "
      "std::optional of these, or c10::ArrayRef, std::vector or c10::List of tensors, int64_t, "
      "SymInt or double, or c10::List of bool or of optional tensors.");
};

template <>
struct Convert<at::Tensor> {
  static constexpr Parameter parameter{.kind = Kind::Tensor};
  static const at::Tensor& get(const Value& value) { return *static_cast<const at::Tensor*>(value.data); }
};
template <>
struct Convert<std::int64_t> {
  static constexpr Parameter parameter{.kind = Kind::Int};
  static std::int64_t get(const Value& value) { return value.integer; }
};
template <>
struct Convert<c10::SymInt> {
  static constexpr Parameter parameter{.kind = Kind::Int};
  static c10::SymInt get(const Value& value) { return value.integer; }
};
template <>
struct Convert<double> {
  static constexpr Parameter parameter{.kind = Kind::Float};
  static double get(const Value& value) { return value.real; }
};
template <>
struct Convert<bool> {
  static constexpr Parameter parameter{.kind = Kind::Bool};
  static bool get(const Value& value) { return value.boolean; }
};
template <typename T>
  requires std::same_as<T, std::string> || std::same_as<T, std::string_view>
struct Convert<T> {
  static constexpr Parameter parameter{.kind = Kind::Str};
  static T get(const Value& value) {
    return T(static_cast<const char*>(value.data), static_cast<std::size_t>(value.size));
  }
};
template <>
struct Convert<at::Scalar> {
  static constexpr Parameter parameter{.kind = Kind::Scalar};
  static at::Scalar get(const Value& value) {
    switch (value.size) {
      case Value::Real:
        return value.real;
      case Value::Boolean:
        return value.boolean;
      default:
        return value.integer;
    }
  }
};
template <typename T, Kind kind>
struct ConvertEnum {
  static constexpr Parameter parameter{.kind = kind};
  static T get(const Value& value) { return static_cast<T>(value.integer); }
};
template <>
struct Convert<at::ScalarType> : ConvertEnum<at::ScalarType, Kind::DType> {};
template <>
struct Convert<at::Layout> : ConvertEnum<at::Layout, Kind::Layout> {};
template <>
struct Convert<at::MemoryFormat> : ConvertEnum<at::MemoryFormat, Kind::MemoryFormat> {};
template <>
struct Convert<at::Device> {
  static constexpr Parameter parameter{.kind = Kind::Device};
  static at::Device get(const Value& value) { return *static_cast<const at::Device*>(value.data); }
};

// --- lists ------------------------------------------------------------------------------------------------------

// The element type of a parameter that holds a list, as the core stores it and as the kernel sees it.
template <typename T>
struct Element {
  static_assert(always_false<T>,
                "dutyfree: a list parameter holds at::Tensor, std::optional<at::Tensor>, int64_t, c10::SymInt, double "
                "or bool");
};
template <typename T>
  requires std::same_as<T, at::Tensor> || std::same_as<T, std::int64_t> || std::same_as<T, double> ||
           std::same_as<T, bool>
struct Element<T> {
  static constexpr Parameter parameter{.kind = Convert<T>::parameter.kind, .list = true};
  using Stored = T;
};
template <>
struct Element<c10::SymInt> {
  static constexpr Parameter parameter{.kind = Kind::Int, .list = true};
  using Stored = std::int64_t;
};
template <>
struct Element<std::optional<at::Tensor>> {
  static constexpr Parameter parameter{.kind = Kind::Tensor, .list = true, .optional_element = true};
  using Stored = at::Tensor;
};

template <typename T>
c10::ArrayRef<typename Element<T>::Stored> stored(const Value& value) {
  // No braces: for bools those would be the elements.
  return c10::ArrayRef<typename Element<T>::Stored>(static_cast<const typename Element<T>::Stored*>(value.data),
                                                    static_cast<std::size_t>(value.size));
}

template <typename T>
T as_element(const typename Element<T>::Stored& item) {
  if constexpr (std::same_as<T, std::optional<at::Tensor>>) {
    return item.defined() ? T(item) : T();
  } else {
    return T(item);
  }
}

template <typename T>
struct Convert<std::vector<T>> {
  static constexpr Parameter parameter = Element<T>::parameter;
  static std::vector<T> get(const Value& value) {
    std::vector<T> items;
    items.reserve(static_cast<std::size_t>(value.size));
    for (const auto& item : stored<T>(value)) {
      items.push_back(as_element<T>(item));
    }
    return items;
  }
};
template <typename T>
struct Convert<c10::List<T>> {
  static constexpr Parameter parameter = Element<T>::parameter;
  static c10::List<T> get(const Value& value) {
    c10::List<T> items;
    items.reserve(static_cast<std::size_t>(value.size));
    for (const auto& item : stored<T>(value)) {
      items.push_back(as_element<T>(item));
    }
    return items;
  }
};

// What an ArrayRef of elements that are stored as another type refers to.
template <typename T>
class Held {
 public:
  explicit Held(const Value& value) : items_(std::make_unique<T[]>(static_cast<std::size_t>(value.size))) {
    for (const auto& item : stored<T>(value)) {
      items_[size_++] = as_element<T>(item);
    }
  }
  operator c10::ArrayRef<T>() const { return c10::ArrayRef<T>(items_.get(), size_); }

 private:
  std::unique_ptr<T[]> items_;
  std::size_t size_ = 0;
};

template <typename T>
struct Convert<c10::ArrayRef<T>> {
  static constexpr Parameter parameter = Element<T>::parameter;
  static auto get(const Value& value) {
    if constexpr (std::same_as<T, typename Element<T>::Stored>) {
      return stored<T>(value);
    } else {
      return Held<T>(value);
    }
  }
};

// --- optional ---------------------------------------------------------------------------------------------------

template <typename T>
struct OptionalOf {
  static constexpr Parameter parameter{.kind = Convert<T>::parameter.kind,
                                       .list = Convert<T>::parameter.list,
                                       .optional = true,
                                       .optional_element = Convert<T>::parameter.optional_element};
};

template <typename T>
struct Convert<std::optional<c10::ArrayRef<T>>> : OptionalOf<c10::ArrayRef<T>> {
  static_assert(std::same_as<T, typename Element<T>::Stored>,
                "dutyfree: an optional list of these elements has to be a std::optional<std::vector>");
  static std::optional<c10::ArrayRef<T>> get(const Value& value) {
    return value.size == Value::Absent ? std::nullopt : std::optional<c10::ArrayRef<T>>(stored<T>(value));
  }
};
template <typename T>
struct Convert<std::optional<T>> : OptionalOf<T> {
  static std::optional<T> get(const Value& value) {
    return value.size == Value::Absent ? std::nullopt : std::optional<T>(Convert<T>::get(value));
  }
};
// PyTorch's own spelling of an optional list that refers to its elements.
template <typename T>
  requires std::same_as<T, std::int64_t> || std::same_as<T, double> || std::same_as<T, bool>
struct Convert<c10::OptionalArrayRef<T>> : OptionalOf<c10::ArrayRef<T>> {
  static c10::OptionalArrayRef<T> get(const Value& value) {
    return value.size == Value::Absent ? c10::OptionalArrayRef<T>() : c10::OptionalArrayRef<T>(stored<T>(value));
  }
};

// What holds one argument while the kernel runs, and gives it as the kernel declares it.
template <typename Declared>
class Argument {
  using Type = std::remove_cvref_t<Declared>;

 public:
  static constexpr Parameter parameter = Convert<Type>::parameter;

  explicit Argument(const Value& value) : held_(Convert<Type>::get(value)) {}
  decltype(auto) get() {
    if constexpr (std::is_lvalue_reference_v<Declared> && std::same_as<Type, at::Tensor>) {
      return static_cast<Declared>(held_);
    } else {
      return std::move(held_);
    }
  }

 private:
  // A `Tensor&` may be assigned to, which must not reach the caller's own: the kernel gets a tensor of its own then.
  using Source = decltype(Convert<Type>::get(std::declval<const Value&>()));
  std::conditional_t<std::same_as<Declared, const at::Tensor&>, const at::Tensor&, std::remove_cvref_t<Source>> held_;
};

}  // namespace dutyfree::detail
#pragma GCC visibility pop
