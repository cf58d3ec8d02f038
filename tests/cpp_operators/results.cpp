// Kernels of every kind of result, kernels that write to their arguments, and kernels that raise.

#include <ATen/ATen.h>
#include <torch/csrc/Exceptions.h>

#include <map>
#include <stdexcept>

#include "twin.h"

namespace {

using at::Tensor;
using std::int64_t;
using std::tuple;
using std::vector;
using twin::inferred;
using twin::on_cpu;

// --- results

Tensor doubled(const Tensor& x) { return x * 2; }
Tensor itself(const Tensor& x) { return x; }
Tensor view(const Tensor& x) { return x.view({-1}); }
Tensor undefined(const Tensor&) { return {}; }
void nothing(const Tensor&) {}
tuple<Tensor, Tensor> two(const Tensor& x) { return {x + 1, x.to(at::kLong)}; }
tuple<Tensor, Tensor, Tensor> three(const Tensor& x) { return {x + 1, {}, x}; }
tuple<Tensor> one_in_tuple(const Tensor& x) { return {x + 1}; }
tuple<Tensor, int64_t, std::string> mixed(const Tensor& x) { return {x + 1, x.numel(), "text"}; }
vector<Tensor> many(const Tensor& x, int64_t n) { return vector<Tensor>(static_cast<std::size_t>(n), x + 1); }
tuple<vector<Tensor>, Tensor> many_and_one(const Tensor& x) { return {{x, x + 1}, x + 2}; }
int64_t an_int(const Tensor& x) { return -x.numel(); }
c10::SymInt a_symint(const Tensor& x) { return x.sym_numel(); }
double a_float(const Tensor&) { return 0.1; }
bool a_bool(const Tensor& x) { return x.numel() > 1; }
std::string a_str(const Tensor&) { return "äöü"; }
at::Scalar a_scalar(const Tensor& x) { return x.is_floating_point() ? at::Scalar(0.5) : at::Scalar(1); }
vector<int64_t> some_ints(const Tensor& x) { return x.sizes().vec(); }
vector<double> some_floats(const Tensor&) { return {0.5, -1.0}; }
at::ScalarType a_dtype(const Tensor& x) { return x.scalar_type(); }
at::Device a_device(const Tensor& x) { return x.device(); }
std::optional<Tensor> maybe_tensor(const Tensor& x) { return x.numel() > 1 ? std::optional(x + 1) : std::nullopt; }
std::optional<int64_t> maybe_int(const Tensor& x) { return x.numel() > 1 ? std::optional(x.numel()) : std::nullopt; }
c10::Dict<std::string, Tensor> a_dict(const Tensor& x) {
  c10::Dict<std::string, Tensor> dict;
  dict.insert("x", x + 1);
  return dict;
}

// As many as the direct path takes, and one more.
template <std::size_t... index>
auto copies(const Tensor& x, std::index_sequence<index...>) {
  return std::make_tuple(x + static_cast<int64_t>(index)...);
}
auto sixteen(const Tensor& x) { return copies(x, std::make_index_sequence<16>()); }
auto seventeen(const Tensor& x) { return copies(x, std::make_index_sequence<17>()); }
tuple<Tensor, double> with_words(const Tensor& x, double a, std::optional<int64_t> n, const std::string&) {
  return {x * a, static_cast<double>(n.value_or(-1))};
}

std::string tensors_in_schema(int count) {
  std::string text = "Tensor";
  for (int index = 1; index < count; ++index) {
    text += ", Tensor";
  }
  return "(" + text + ")";
}

template <typename Library>
void results(Library& m) {
  on_cpu<&sixteen>(m, ("sixteen(Tensor x) -> " + tensors_in_schema(16)).c_str());
  on_cpu<&seventeen>(m, ("seventeen(Tensor x) -> " + tensors_in_schema(17)).c_str());
  on_cpu<&doubled>(m, "doubled(Tensor x) -> Tensor");
  on_cpu<&itself>(m, "itself(Tensor x) -> Tensor");
  on_cpu<&view>(m, "view(Tensor x) -> Tensor");
  on_cpu<&undefined>(m, "undefined(Tensor x) -> Tensor");
  on_cpu<&nothing>(m, "nothing(Tensor x) -> ()");
  on_cpu<&two>(m, "two(Tensor x) -> (Tensor, Tensor)");
  on_cpu<&three>(m, "three(Tensor x) -> (Tensor, Tensor, Tensor)");
  on_cpu<&one_in_tuple>(m, "one_in_tuple(Tensor x) -> Tensor");
  on_cpu<&mixed>(m, "mixed(Tensor x) -> (Tensor, int, str)");
  on_cpu<&many>(m, "many(Tensor x, int n) -> Tensor[]");
  on_cpu<&many_and_one>(m, "many_and_one(Tensor x) -> (Tensor[], Tensor)");
  on_cpu<&an_int>(m, "an_int(Tensor x) -> int");
  on_cpu<&a_symint>(m, "a_symint(Tensor x) -> SymInt");
  on_cpu<&a_float>(m, "a_float(Tensor x) -> float");
  on_cpu<&a_bool>(m, "a_bool(Tensor x) -> bool");
  on_cpu<&a_str>(m, "a_str(Tensor x) -> str");
  on_cpu<&a_scalar>(m, "a_scalar(Tensor x) -> Scalar");
  on_cpu<&some_ints>(m, "some_ints(Tensor x) -> int[]");
  on_cpu<&some_floats>(m, "some_floats(Tensor x) -> float[]");
  on_cpu<&a_dtype>(m, "a_dtype(Tensor x) -> ScalarType");
  on_cpu<&a_device>(m, "a_device(Tensor x) -> Device");
  on_cpu<&maybe_tensor>(m, "maybe_tensor(Tensor x) -> Tensor?");
  on_cpu<&maybe_int>(m, "maybe_int(Tensor x) -> int?");
  on_cpu<&a_dict>(m, "a_dict(Tensor x) -> Dict(str, Tensor)");
}

// --- what is written to

Tensor& add_(Tensor& x, double a) { return x.add_(a); }
void add_nothing_returned(Tensor& x, const Tensor& y) { x.add_(y); }
Tensor& add_out(const Tensor& x, const Tensor& y, Tensor& out) { return at::add_out(out, x, y); }
tuple<Tensor&, Tensor&> two_out(const Tensor& x, Tensor& first, Tensor& second) {
  first.copy_(x);
  second.copy_(x * 2);
  return {first, second};
}
Tensor through_pointer(const Tensor& x) {
  x.mutable_data_ptr<float>()[0] = 7;
  return x + 1;
}
void add_to_all(at::TensorList xs) {
  for (const Tensor& x : xs) {
    x.add_(1);
  }
}
void add_where_given(const Tensor& x, const std::optional<Tensor>& out) {
  if (out.has_value()) {
    out->copy_(x);
  }
}
// What is assigned to a parameter stays in the kernel.
Tensor& assigns_(Tensor& x) {
  x = x + 100;
  return x;
}
void assigns_and_returns_nothing(Tensor& x) { x = at::zeros({5}); }
void swaps(Tensor& x, Tensor& y) { std::swap(x, y); }
Tensor moves_from_its_value(Tensor x) {
  const Tensor taken = std::move(x);
  return taken + 1;
}
void writes_then_raises(Tensor& x) {
  x.add_(1);
  TORCH_CHECK(false, "after writing");
}

template <typename Library>
void written(Library& m) {
  on_cpu<&add_>(m, "add_(Tensor(a!) x, float a=1.0) -> Tensor(a!)");
  on_cpu<&add_nothing_returned>(m, "add_nothing_returned(Tensor(a!) x, Tensor y) -> ()");
  on_cpu<&add_out>(m, "add(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)");
  on_cpu<&two_out>(m, "two_out(Tensor x, *, Tensor(a!) first, Tensor(b!) second) -> (Tensor(a!), Tensor(b!))");
  on_cpu<&through_pointer>(m, "through_pointer(Tensor(a!) x) -> Tensor");
  on_cpu<&add_to_all>(m, "add_to_all(Tensor(a!)[] xs) -> ()");
  on_cpu<&add_where_given>(m, "add_where_given(Tensor x, Tensor(a!)? out=None) -> ()");
  on_cpu<&assigns_>(m, "assigns_(Tensor(a!) x) -> Tensor(a!)");
  on_cpu<&assigns_and_returns_nothing>(m, "assigns_and_returns_nothing(Tensor(a!) x) -> ()");
  on_cpu<&swaps>(m, "swaps(Tensor(a!) x, Tensor(b!) y) -> ()");
  on_cpu<&moves_from_its_value>(m, "moves_from_its_value(Tensor x) -> Tensor");
  on_cpu<&add_>(m, "add_without_gil_(Tensor(a!) x, float a=1.0) -> Tensor(a!)", {.release_gil = true});
  on_cpu<&assigns_>(m, "assigns_without_gil_(Tensor(a!) x) -> Tensor(a!)", {.release_gil = true});
  inferred<&with_words>(m, "with_words", {"x", "a", "n", "text"},
                        "with_words(Tensor x, float a, int? n, str text) -> (Tensor, float)");
  inferred<&add_>(m, "add_unnamed_", {}, "add_unnamed_(Tensor(a!) _0, float _1) -> Tensor(a!)");
  inferred<&two_out>(m, "two_inferred.out", {"x", "first", "second"},
                     "two_inferred.out(Tensor x, Tensor(a!) first, Tensor(b!) second) -> (Tensor(a!), Tensor(b!))");
  on_cpu<&writes_then_raises>(m, "writes_then_raises(Tensor(a!) x) -> ()");
}

// --- what is thrown

struct NoException {};
struct OfItsOwn : std::exception {
  const char* what() const noexcept override { return "of its own"; }
};

void set_python_error() {
  const pybind11::gil_scoped_acquire gil;
  PyErr_SetString(PyExc_ZeroDivisionError, "set by the kernel");
  throw python_error();
}

const std::map<std::string, void (*)()>& kinds() {
  static const std::map<std::string, void (*)()> all = {
      {"check", [] { TORCH_CHECK(false, "n is ", 1); }},
      {"value", [] { TORCH_CHECK_VALUE(false, "no value"); }},
      {"type", [] { TORCH_CHECK_TYPE(false, "no type"); }},
      {"index", [] { TORCH_CHECK_INDEX(false, "no index"); }},
      {"not implemented", [] { TORCH_CHECK_NOT_IMPLEMENTED(false, "not there"); }},
      {"linalg", [] { TORCH_CHECK_LINALG(false, "singular"); }},
      {"internal", [] { TORCH_INTERNAL_ASSERT(false, "inside"); }},
      {"out of memory", [] { C10_THROW_ERROR(OutOfMemoryError, "full"); }},
      {"runtime_error", [] { throw std::runtime_error("runtime"); }},
      {"invalid_argument", [] { throw std::invalid_argument("invalid"); }},
      {"out_of_range", [] { throw std::out_of_range("range"); }},
      {"bad_alloc", [] { throw std::bad_alloc(); }},
      {"own", [] { throw OfItsOwn(); }},
      {"python", [] { set_python_error(); }},
      {"torch", [] { throw torch::TypeError("of torch's own"); }},
  };
  return all;
}

Tensor raises(const Tensor& x, const std::string& kind) {
  kinds().at(kind)();
  return x;
}
tuple<Tensor, int64_t> raises_mixed(const Tensor& x, at::TensorList, const std::string& kind) {
  kinds().at(kind)();
  return {x, 1};
}
void raises_no_exception(const Tensor&) { throw NoException(); }

template <typename Library>
void thrown(Library& m) {
  on_cpu<&raises>(m, "raises(Tensor x, str kind) -> Tensor");
  on_cpu<&raises>(m, "raises_without_gil(Tensor x, str kind) -> Tensor", {.release_gil = true});
  on_cpu<&raises_mixed>(m, "raises_mixed(Tensor x, Tensor[] xs, str kind) -> (Tensor, int)");
  on_cpu<&raises_no_exception>(m, "raises_no_exception(Tensor x) -> ()");
}

template <typename Library>
void all(Library& m) {
  results(m);
  written(m);
  thrown(m);
}

}  // namespace

TWINS(cppresults, all)
