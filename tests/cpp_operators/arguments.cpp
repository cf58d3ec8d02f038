// Kernels of every parameter type that include/dutyfree/parameters.h has. Each returns what it was given as text.

#include "seen.h"
#include "twin.h"

namespace {

using at::Tensor;
using c10::SymInt;
using seen_by_kernels::seen;
using std::int64_t;
using std::optional;
using std::vector;
using twin::anywhere;
using twin::on_cpu;

template <typename Library>
void tensors(Library& m) {
  on_cpu<&seen<const Tensor&>>(m, "tensor_by_reference(Tensor x) -> str");
  on_cpu<&seen<Tensor>>(m, "tensor_by_value(Tensor x) -> str");
  on_cpu<&seen<Tensor, optional<Tensor>>>(m, "tensor_optional(Tensor x, Tensor? y=None) -> str");
  on_cpu<&seen<Tensor, const optional<Tensor>&>>(m, "tensor_optional_by_reference(Tensor x, Tensor? y=None) -> str");
  on_cpu<&seen<at::TensorList>>(m, "tensors(Tensor[] xs) -> str");
  on_cpu<&seen<vector<Tensor>>>(m, "tensors_in_vector(Tensor[] xs) -> str");
  on_cpu<&seen<const c10::List<Tensor>&>>(m, "tensors_in_list(Tensor[] xs) -> str");
  on_cpu<&seen<const c10::List<optional<Tensor>>&>>(m, "tensors_optional_in_list(Tensor?[] xs) -> str");
  on_cpu<&seen<vector<optional<Tensor>>>>(m, "tensors_optional_in_vector(Tensor?[] xs) -> str");
  on_cpu<&seen<Tensor, optional<vector<Tensor>>>>(m, "tensors_or_none(Tensor x, Tensor[]? xs=None) -> str");
}

template <typename Library>
void numbers(Library& m) {
  on_cpu<&seen<Tensor, int64_t>>(m, "int(Tensor x, int n) -> str");
  on_cpu<&seen<Tensor, int64_t>>(m, "int_default(Tensor x, int n=-7) -> str");
  on_cpu<&seen<Tensor, optional<int64_t>>>(m, "int_optional(Tensor x, int? n=None) -> str");
  on_cpu<&seen<Tensor, SymInt>>(m, "symint(Tensor x, SymInt n) -> str");
  on_cpu<&seen<Tensor, optional<SymInt>>>(m, "symint_optional(Tensor x, SymInt? n=3) -> str");
  on_cpu<&seen<Tensor, double>>(m, "float(Tensor x, float a) -> str");
  on_cpu<&seen<Tensor, optional<double>>>(m, "float_optional(Tensor x, float? a=0.5) -> str");
  on_cpu<&seen<Tensor, bool>>(m, "bool(Tensor x, bool flag) -> str");
  on_cpu<&seen<Tensor, optional<bool>>>(m, "bool_optional(Tensor x, bool? flag=True) -> str");
  on_cpu<&seen<Tensor, const at::Scalar&>>(m, "scalar(Tensor x, Scalar s) -> str");
  on_cpu<&seen<Tensor, at::Scalar>>(m, "scalar_default(Tensor x, Scalar s=2) -> str");
  on_cpu<&seen<Tensor, const optional<at::Scalar>&>>(m, "scalar_optional(Tensor x, Scalar? s=None) -> str");
}

template <typename Library>
void words(Library& m) {
  on_cpu<&seen<Tensor, std::string>>(m, "str(Tensor x, str text) -> str");
  on_cpu<&seen<Tensor, std::string_view>>(m, "str_view(Tensor x, str text=\"usual\") -> str");
  on_cpu<&seen<Tensor, optional<std::string>>>(m, "str_optional(Tensor x, str? text=None) -> str");
  on_cpu<&seen<Tensor, optional<std::string_view>>>(m, "str_view_optional(Tensor x, str? text=\"\") -> str");
  on_cpu<&seen<Tensor, at::ScalarType>>(m, "dtype(Tensor x, ScalarType dtype=float) -> str");
  on_cpu<&seen<Tensor, optional<at::ScalarType>>>(m, "dtype_optional(Tensor x, ScalarType? dtype=None) -> str");
  on_cpu<&seen<Tensor, at::Device>>(m, "device(Tensor x, Device device) -> str");
  on_cpu<&seen<Tensor, optional<at::Device>>>(m, "device_optional(Tensor x, Device? device=None) -> str");
  on_cpu<&seen<Tensor, at::Layout>>(m, "layout(Tensor x, Layout layout) -> str");
  on_cpu<&seen<Tensor, optional<at::Layout>>>(m, "layout_optional(Tensor x, Layout? layout=None) -> str");
  on_cpu<&seen<Tensor, at::MemoryFormat>>(m, "format(Tensor x, MemoryFormat format) -> str");
  on_cpu<&seen<Tensor, optional<at::MemoryFormat>>>(m, "format_optional(Tensor x, MemoryFormat? format=None) -> str");
}

template <typename Library>
void lists(Library& m) {
  on_cpu<&seen<Tensor, at::IntArrayRef>>(m, "ints(Tensor x, int[] ns) -> str");
  on_cpu<&seen<Tensor, at::IntArrayRef>>(m, "ints_sized(Tensor x, int[2] ns=1) -> str");
  on_cpu<&seen<Tensor, vector<int64_t>>>(m, "ints_in_vector(Tensor x, int[] ns=[1, 2]) -> str");
  on_cpu<&seen<Tensor, c10::List<int64_t>>>(m, "ints_in_list(Tensor x, int[] ns) -> str");
  on_cpu<&seen<Tensor, at::OptionalIntArrayRef>>(m, "ints_optional(Tensor x, int[]? ns=None) -> str");
  on_cpu<&seen<Tensor, optional<vector<int64_t>>>>(m, "ints_optional_in_vector(Tensor x, int[]? ns=None) -> str");
  on_cpu<&seen<Tensor, c10::SymIntArrayRef>>(m, "symints(Tensor x, SymInt[] ns) -> str");
  on_cpu<&seen<Tensor, at::ArrayRef<double>>>(m, "floats(Tensor x, float[] as_) -> str");
  on_cpu<&seen<Tensor, vector<double>>>(m, "floats_in_vector(Tensor x, float[] as_=[]) -> str");
  on_cpu<&seen<Tensor, optional<at::ArrayRef<double>>>>(m, "floats_optional(Tensor x, float[]? as_=None) -> str");
  on_cpu<&seen<Tensor, c10::List<bool>>>(m, "bools_in_list(Tensor x, bool[] flags) -> str");
  on_cpu<&seen<Tensor, optional<c10::List<bool>>>>(m, "bools_optional(Tensor x, bool[]? flags=None) -> str");
}

template <std::size_t>
using Int = int64_t;
template <std::size_t... index>
std::string sum_of_all(const Tensor&, Int<index>... values) {
  return std::to_string((values + ...));
}

// As many arguments as PyTorch allows: a tensor and 63 numbers.
template <typename Library, std::size_t... index>
void crowd(Library& m, const std::string& name, std::index_sequence<index...>) {
  std::string schema = name + "(Tensor x";
  ((schema += ", int n" + std::to_string(index) + "=" + std::to_string(index)), ...);
  on_cpu<&sum_of_all<index...>>(m, (schema + ") -> str").c_str());
}

template <typename Library>
void together(Library& m) {
  crowd(m, "of_64", std::make_index_sequence<63>());
  on_cpu<
      &seen<Tensor, int64_t, double, bool>>(m,
                                            "keyword_only(Tensor x, int n=1, *, float a=0.5, bool flag=False) -> str");
  on_cpu<&seen<Tensor, at::IntArrayRef, optional<Tensor>, at::TensorList, at::ArrayRef<double>, std::string_view>>(
      m, "many(Tensor x, int[] ns, Tensor? y, Tensor[] xs, float[] as_=[0.5], str text=\"a\") -> str");
  anywhere<&seen<>>(m, "nothing() -> str");
  anywhere<&seen<int64_t, optional<at::Device>>>(m, "no_tensor(int n, *, Device? device=None) -> str");
  // The packet's overloads in the order in which PyTorch tries them.
  on_cpu<&seen<Tensor, int64_t>>(m, "several(Tensor x, int n) -> str");
  on_cpu<&seen<Tensor, Tensor>>(m, "several.tensor(Tensor x, Tensor y) -> str");
  on_cpu<&seen<Tensor, std::string>>(m, "several.text(Tensor x, str text) -> str");
  on_cpu<&seen<Tensor, at::IntArrayRef, int64_t>>(m, "several.ints(Tensor x, int[] ns, *, int k=1) -> str");
}

template <typename Library>
void all(Library& m) {
  tensors(m);
  numbers(m);
  words(m);
  lists(m);
  together(m);
}

}  // namespace

TWINS(cpparguments, all)
