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

// --- results ----------------------------------------------------------------------------------------------------

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

// --- a function as a kernel -------------------------------------------------------------------------------------

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

// --- autograd ---------------------------------------------------------------------------------------------------

template <typename T>
inline constexpr bool is_optional = false;
template <typename T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <typename T>
inline constexpr bool is_list = false;
template <typename T>
inline constexpr bool is_list<c10::ArrayRef<T>> = true;
template <typename T>
inline constexpr bool is_list<std::vector<T>> = true;
template <typename T>
inline constexpr bool is_list<c10::List<T>> = true;

// Whether an argument is, or holds, a tensor that requires grad, or a dual tensor of forward mode: that has a tangent
// whether gradients are recorded or not.
template <typename T>
bool needs_gradient(const T& value) {
  if constexpr (std::same_as<T, at::Tensor>) {
    return value.defined() &&
           ((at::GradMode::is_enabled() && value.requires_grad()) || value._fw_grad(/*level=*/0).defined());
  } else if constexpr (is_optional<T>) {
    return value.has_value() && needs_gradient(*value);
  } else if constexpr (is_list<T>) {
    for (std::size_t index = 0; index < value.size(); ++index) {
      // By value: a c10::List has no references to give.
      const typename T::value_type item = value[index];
      if (needs_gradient(item)) {
        return true;
      }
    }
    return false;
  } else {
    return false;
  }
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

  // With the keys of the call, which a call from here could not find anew: PyTorch looks for tensors in some of the
  // types only that lists may have.
  Result operator()(c10::DispatchKeySet keys, Declared... arguments) {
    if ((needs_gradient(arguments) || ...)) {
      return function(std::forward<Declared>(arguments)...);
    }
    const at::AutoDispatchBelowAutograd guard;
    return find(name_).template typed<Result(Declared...)>().redispatch(keys & c10::after_autograd_keyset,
                                                                        std::forward<Declared>(arguments)...);
  }

 private:
  const c10::OperatorName name_;
};

// --- mutated arguments ------------------------------------------------------------------------------------------

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
      c10::TensorImpl* tensor = value.toTensor().unsafeGetTensorImpl();
      // A detached inference tensor has a counter, which custom_op leaves alone; one without raises here.
      if (value.toTensor().defined() && !(tensor->is_inference() && tensor->version_counter().enabled())) {
        tensor->bump_version();
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
