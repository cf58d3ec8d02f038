#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/op_registration/infer_schema.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// What a C++ signature says as a schema.
#pragma GCC visibility push(hidden)
namespace dutyfree::detail {

template <typename T>
struct Signature;
template <typename Result, typename... Declared>
struct Signature<Result (*)(Declared...)> {
  using type = Result(Declared...);
  // Which parameters the function may write to.
  static constexpr std::array<bool, sizeof...(Declared)> writes = {std::is_same_v<Declared, at::Tensor&>...};
};
template <typename Result, typename... Declared>
struct Signature<Result (*)(Declared...) noexcept> : Signature<Result (*)(Declared...)> {};

template <auto function>
using SignatureOf = typename Signature<decltype(function)>::type;

template <typename T>
struct ResultReferences {
  static constexpr std::array<bool, 1> are = {std::is_same_v<T, at::Tensor&>};
};
template <typename... T>
struct ResultReferences<std::tuple<T...>> {
  static constexpr std::array<bool, sizeof...(T)> are = {std::is_same_v<T, at::Tensor&>...};
};
template <typename Function>
struct ResultOf;
template <typename Result, typename... Declared>
struct ResultOf<Result(Declared...)> {
  using type = Result;
};

// The n-th argument that is written to: a!, b!, ...
inline c10::AliasInfo written(std::size_t number) {
  const auto name = c10::Symbol::fromQualString(std::string("alias::") + static_cast<char>('a' + number));
  c10::AliasInfo alias;
  alias.setIsWrite(true);
  alias.addBeforeSet(name);
  alias.addAfterSet(name);
  return alias;
}

// The schema of `function`: a `Tensor&` is an argument that is written to, and results that are `Tensor&` are those
// arguments again, in their order. Arguments are called _0, _1, ... where no names are given.
template <auto function>
c10::FunctionSchema schema_of(const std::string& name, const std::vector<std::string>& names) {
  const c10::FunctionSchema plain = c10::inferFunctionSchemaFlattenedReturns<SignatureOf<function>>();
  constexpr auto writes = Signature<decltype(function)>::writes;
  TORCH_CHECK(names.empty() || names.size() == writes.size(), name, ": ", names.size(), " argument names for ",
              writes.size(), " parameters; the function's schema: ", plain);
  std::vector<c10::Argument> arguments;
  std::size_t written_arguments = 0;
  for (std::size_t index = 0; index < writes.size(); ++index) {
    const c10::Argument& argument = plain.arguments()[index];
    arguments.emplace_back(names.empty() ? argument.name() : names[index], argument.type(), argument.real_type(),
                           argument.N(), std::nullopt, false,
                           writes[index] ? std::optional(written(written_arguments++)) : std::nullopt);
  }
  constexpr auto references = ResultReferences<typename ResultOf<SignatureOf<function>>::type>::are;
  std::vector<c10::Argument> results;
  std::size_t returned_arguments = 0;
  for (std::size_t index = 0; index < plain.returns().size(); ++index) {
    const c10::Argument& result = plain.returns()[index];
    TORCH_CHECK(!references[index] || returned_arguments < written_arguments, name,
                ": more results are at::Tensor& than parameters; the function's schema: ", plain);
    results.emplace_back("", result.type(), result.real_type(), result.N(), std::nullopt, false,
                         references[index] ? std::optional(written(returned_arguments++)) : std::nullopt);
  }
  const auto dot = name.find('.', name.find("::") == std::string::npos ? 0 : name.find("::"));
  return c10::FunctionSchema(name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1),
                             std::move(arguments), std::move(results));
}

// PyTorch compares types only: it takes a function that writes to an argument which the schema says is read.
template <auto function>
void check_written(const c10::FunctionSchema& schema) {
  constexpr auto writes = Signature<decltype(function)>::writes;
  for (std::size_t index = 0; index < writes.size() && index < schema.arguments().size(); ++index) {
    const c10::AliasInfo* alias = schema.arguments()[index].alias_info();
    TORCH_CHECK(!writes[index] || (alias != nullptr && alias->isWrite()), "A C++ kernel takes argument ", index,
                " as at::Tensor&, which its schema does not say is written to.\n  schema: ", schema,
                "\n  of the C++ function: ", schema_of<function>(schema.name(), {}));
  }
}

}  // namespace dutyfree::detail
#pragma GCC visibility pop
