#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <utility>

#include "dutyfree/parameters.h"

// The kernels that a library puts into PyTorch's dispatch table: what PyTorch calls, and beside it the direct entry.
#pragma GCC visibility push(hidden)
namespace dutyfree::detail {

// What PyTorch shows as the place of a registration.
inline constexpr const char* kDebug = "registered by dutyfree/op.h";

inline c10::OperatorHandle find(const c10::OperatorName& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
}

// --- results
// ----------------------------------------------------------------------------------------------------------

template <typename T>
inline constexpr bool is_tensor = std::same_as<std::remove_cvref_t<T>, at::Tensor>;

template <typename T>
struct ResultsOf {
  static constexpr int tensors = is_tensor<T> ? 1 : -1;
  static void put(T&& result, Results& results) {
    if constexpr (is_tensor<T>) {
      new (results.tensors) at::Tensor(std::forward<T>(result));
    } else {
      results.others->emplace_back(std::forward<T>(result));
    }
  }
};
template <typename... T>
struct ResultsOf<std::tuple<T...>> {
  static constexpr int tensors = (is_tensor<T> && ...) ? static_cast<int>(sizeof...(T)) : -1;
  static void put(std::tuple<T...>&& result, Results& results) {
    std::apply(
        [&](auto&&... item) {
          if constexpr (tensors >= 0) {
            at::Tensor* room = results.tensors;
            (new (room++) at::Tensor(std::forward<decltype(item)>(item)), ...);
          } else {
            (results.others->emplace_back(std::forward<decltype(item)>(item)), ...);
          }
        },
        std::move(result));
  }
};
template <>
struct ResultsOf<void> {
  static constexpr int tensors = 0;
};

// --- a function as a kernel
// -------------------------------------------------------------------------------------------

template <auto function, typename Signature>
class FunctionKernel;

template <auto function, typename Result, typename... Declared>
class FunctionKernel<function, Result(Declared...)> : public DirectKernel {
 public:
  FunctionKernel() {
    call = &call_directly;
    parameters = kParameters.data();
    parameter_count = sizeof...(Declared);
    tensor_results = ResultsOf<Result>::tensors;
  }

  // How the dispatcher calls it.
  Result operator()(Declared... arguments) { return function(std::forward<Declared>(arguments)...); }

 private:
  static constexpr std::array<Parameter, sizeof...(Declared)> kParameters = {Argument<Declared>::parameter...};

  static void call_directly(const Value* values, Results& results) {
    call_directly(values, results, std::index_sequence_for<Declared...>());
  }
  template <std::size_t... index>
  static void call_directly([[maybe_unused]] const Value* values,
                            [[maybe_unused]] Results& results,
                            std::index_sequence<index...>) {
    if constexpr (std::is_void_v<Result>) {
      function(Argument<Declared>(values[index]).get()...);
    } else {
      ResultsOf<Result>::put(function(Argument<Declared>(values[index]).get()...), results);
    }
  }
};

// --- autograd
// ---------------------------------------------------------------------------------------------------------

// A dual tensor of forward mode has a tangent, whether gradients are recorded or not.
inline bool requires_grad(const at::Tensor& tensor) {
  return tensor.defined() &&
         ((at::GradMode::is_enabled() && tensor.requires_grad()) || tensor._fw_grad(/*level=*/0).defined());
}
template <typename T>
bool requires_grad(const T&) {
  return false;
}
template <typename T>
bool requires_grad(const std::optional<T>& value) {
  return value.has_value() && requires_grad(*value);
}
template <typename List>
bool any_requires_grad(const List& list) {
  for (const auto& item : list) {
    // A c10::List gives its elements by value or by a proxy.
    if (requires_grad(static_cast<const typename List::value_type&>(item))) {
      return true;
    }
  }
  return false;
}
template <typename T>
bool requires_grad(const c10::ArrayRef<T>& list) {
  return any_requires_grad(list);
}
template <typename T>
bool requires_grad(const std::vector<T>& list) {
  return any_requires_grad(list);
}
template <typename T>
bool requires_grad(const c10::List<T>& list) {
  for (std::size_t index = 0; index < list.size(); ++index) {
    if (requires_grad(list.get(index))) {
      return true;
    }
  }
  return false;
}

// Runs `function` where an argument needs a gradient. Where none does, a torch::autograd::Function would make a node
// for nothing, so the call goes on to the body, below autograd.
template <auto function, typename Signature>
class AutogradKernel;

template <auto function, typename Result, typename... Declared>
class AutogradKernel<function, Result(Declared...)> final : public FunctionKernel<function, Result(Declared...)> {
 public:
  explicit AutogradKernel(c10::OperatorName name) : name_(std::move(name)) {
    this->role = DirectKernel::Role::Autograd;
  }

  Result operator()(Declared... arguments) {
    if ((requires_grad(arguments) || ...)) {
      return function(std::forward<Declared>(arguments)...);
    }
    const at::AutoDispatchBelowAutograd guard;
    return find(name_).template typed<Result(Declared...)>().call(std::forward<Declared>(arguments)...);
  }

 private:
  const c10::OperatorName name_;
};

// --- mutated arguments
// ------------------------------------------------------------------------------------------------

// Gives the arguments that the schema says are written to new versions, as torch.library.custom_op does: without them
// autograd can't tell that a tensor that it saved has changed.
class VersionKernel final : public DirectKernel {
 public:
  VersionKernel() { role = Role::ADInplaceOrView; }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto& arguments = op.schema().arguments();
    const std::size_t first = stack->size() - arguments.size();
    for (std::size_t index = 0; index < arguments.size(); ++index) {
      if (arguments[index].alias_info() != nullptr && arguments[index].alias_info()->isWrite()) {
        bump((*stack)[first + index]);
      }
    }
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  }

 private:
  static void bump(const c10::IValue& value) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) {
        value.toTensor().unsafeGetTensorImpl()->bump_version();
      }
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        bump(item);
      }
    }
  }
};

}  // namespace dutyfree::detail
#pragma GCC visibility pop
