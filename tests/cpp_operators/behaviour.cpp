// Kernels that depend on more than their arguments: autograd functions, fake kernels, Python, threads, what outlives a
// call.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "seen.h"
#include "twin.h"

namespace {

using at::Tensor;
using std::int64_t;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using twin::anywhere;
using twin::on_cpu;

template <bool fast>
c10::OperatorHandle operator_named(const std::string& name) {
  const std::string name_space = fast ? "cppbehaviour_fast::" : "cppbehaviour_slow::";
  return c10::Dispatcher::singleton().findSchemaOrThrow((name_space + name).c_str(), "");
}

// --- autograd

Tensor scaled(const Tensor& x, const Tensor& y, double a) { return x * y * a; }
Tensor scaled_fake(const Tensor& x, const Tensor&, double) { return at::empty_like(x); }

template <bool fast>
struct Scaled : torch::autograd::Function<Scaled<fast>> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y, double a) {
    const at::AutoDispatchBelowAutograd guard;
    ctx->save_for_backward({x, y});
    ctx->saved_data["a"] = a;
    return operator_named<fast>("scaled").template typed<Tensor(const Tensor&, const Tensor&, double)>().call(x, y, a);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const double a = ctx->saved_data["a"].toDouble();
    return {gradients[0] * saved[1] * a, gradients[0] * saved[0] * a, {}};
  }
};
template <bool fast>
Tensor scaled_autograd(const Tensor& x, const Tensor& y, double a) {
  return Scaled<fast>::apply(x, y, a);
}

std::tuple<Tensor, Tensor> sum_and_count(at::TensorList xs) {
  Tensor sum = xs[0].clone();
  for (const Tensor& x : xs.slice(1)) {
    sum = sum + x;
  }
  return {sum, at::tensor(static_cast<int64_t>(xs.size()))};
}
template <bool fast>
struct SumAndCount : torch::autograd::Function<SumAndCount<fast>> {
  static variable_list forward(AutogradContext* ctx, at::TensorList xs) {
    const at::AutoDispatchBelowAutograd guard;
    ctx->saved_data["n"] = static_cast<int64_t>(xs.size());
    auto [sum, count] =
        operator_named<fast>("sum_and_count").template typed<std::tuple<Tensor, Tensor>(at::TensorList)>().call(xs);
    ctx->mark_non_differentiable({count});
    return {sum, count};
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) { return {gradients[0]}; }
};
template <bool fast>
std::tuple<Tensor, Tensor> sum_and_count_autograd(at::TensorList xs) {
  auto results = SumAndCount<fast>::apply(xs);
  return {results[0], results[1]};
}

// The sum of tensors, in the types that a list may have. It is differentiable itself, so that it may stand under
// autograd.
template <typename List>
Tensor total(const Tensor& x, List xs) {
  if constexpr (std::is_same_v<List, std::optional<std::vector<Tensor>>>) {
    return xs.has_value() ? total<const std::vector<Tensor>&>(x, *xs) : x.clone();
  } else {
    Tensor sum = x + 0;
    for (const Tensor& item : xs) {
      sum = sum + item;
    }
    return sum;
  }
}
template <typename List, typename Library>
void totals(Library& m, const char* schema) {
  on_cpu<&total<List>>(m, schema).template autograd<&total<List>>();
}
void add_one(at::TensorList xs) {
  for (const Tensor& x : xs) {
    *x.mutable_data_ptr<float>() += 1;
  }
}

Tensor refuses_gradient(const Tensor& x) { return x + 1; }
Tensor refuses_gradient_autograd(const Tensor&) { TORCH_CHECK(false, "has no gradient"); }

// For torch.library.register_autograd, which has to find no kernel under Autograd.
Tensor cubed(const Tensor& x, int64_t n) { return x * x * x * n; }
Tensor cubed_fake(const Tensor& x, int64_t) { return at::empty_like(x); }

Tensor matched(const Tensor& x, const Tensor& y) { return at::mm(x, y); }
Tensor matched_autocast(const Tensor& x, const Tensor& y) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastCPU);
  return at::mm(x.to(at::kBFloat16), y.to(at::kBFloat16));
}

Tensor& increment_(Tensor& x) { return x.add_(1); }
Tensor& increment_fake(Tensor& x) { return x; }

// --- tensors of other kinds

std::string state(const Tensor& x) {
  std::ostringstream out;
  seen_by_kernels::write(out, x);
  seen_by_kernels::write_state(out);
  return out.str();
}
Tensor number_of_elements(const Tensor& x) { return at::tensor(x.numel()); }

// --- Python

// An operator whose body may be Python.
template <bool fast>
Tensor calls_another(const Tensor& x) {
  return operator_named<fast>("in_python").template typed<Tensor(const Tensor&)>().call(x) + 1;
}
Tensor warns(const Tensor& x) {
  TORCH_WARN("warned by the kernel ", x.dim());
  return x + 1;
}
Tensor warns_of_the_past(const Tensor& x) {
  TORCH_WARN_DEPRECATION("old");
  return x + 1;
}

// --- what outlives a call

std::vector<Tensor>& kept() {
  static std::vector<Tensor> all;
  return all;
}
void keep(const Tensor& x, at::TensorList xs) {
  kept().push_back(x);
  kept().insert(kept().end(), xs.begin(), xs.end());
}
std::vector<Tensor> give_back() { return std::exchange(kept(), {}); }
Tensor same_from_global(const Tensor& x) {
  kept().assign({x});
  Tensor result = kept()[0];
  kept().clear();
  return result;
}

// --- threads

std::atomic<int> present{0};

// How many calls were inside at once, seen by one that waits for another for up to `milliseconds`.
int64_t meet(const Tensor&, int64_t milliseconds) {
  ++present;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  int most = present;
  while (most < 2 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    most = std::max(most, present.load());
  }
  // The other one sees this one as well.
  std::this_thread::sleep_for(std::chrono::milliseconds(most < 2 ? 0 : 20));
  --present;
  return most;
}
Tensor sum_of(at::TensorList xs, const Tensor& y, const std::optional<Tensor>& z) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Tensor sum = y.clone();
  for (const Tensor& x : xs) {
    sum += x;
  }
  return z.has_value() ? sum + *z : sum;
}

template <typename Library>
void all(Library& m) {
  constexpr bool fast = Library::fast;
  on_cpu<&scaled>(m, "scaled(Tensor x, Tensor y, float a=2.0) -> Tensor")
      .template fake<&scaled_fake>()
      .template autograd<&scaled_autograd<fast>>();
  on_cpu<&sum_and_count>(m, "sum_and_count(Tensor[] xs) -> (Tensor, Tensor)")
      .template autograd<&sum_and_count_autograd<fast>>();
  totals<at::TensorList>(m, "total(Tensor x, Tensor[] xs) -> Tensor");
  totals<at::TensorList>(m, "total_of_two(Tensor x, Tensor[2] xs) -> Tensor");
  totals<const std::vector<Tensor>&>(m, "total_of_vector(Tensor x, Tensor[] xs) -> Tensor");
  totals<std::optional<std::vector<Tensor>>>(m, "total_or_none(Tensor x, Tensor[]? xs=None) -> Tensor");
  on_cpu<&add_one>(m, "add_one(Tensor(a!)[2] xs) -> ()");
  on_cpu<&refuses_gradient>(m, "refuses_gradient(Tensor x) -> Tensor").template autograd<&refuses_gradient_autograd>();
  on_cpu<&cubed>(m, "cubed(Tensor x, int n=1) -> Tensor").template fake<&cubed_fake>();
  on_cpu<&matched>(m, "matched(Tensor x, Tensor y) -> Tensor");
  on_cpu<&matched>(m, "matched_with_rule(Tensor x, Tensor y) -> Tensor")
      .template impl<&matched_autocast>(c10::DispatchKey::AutocastCPU);
  on_cpu<&increment_>(m, "increment_(Tensor(a!) x) -> Tensor(a!)").template fake<&increment_fake>();
  on_cpu<&state>(m, "state(Tensor x) -> str");
  anywhere<&state>(m, "state_anywhere(Tensor x) -> str");
  anywhere<&number_of_elements>(m, "number_of_elements(Tensor x) -> Tensor");
  m.def("in_python(Tensor x) -> Tensor");
  on_cpu<&calls_another<fast>>(m, "calls_another(Tensor x) -> Tensor");
  on_cpu<&calls_another<fast>>(m, "calls_another_without_gil(Tensor x) -> Tensor", {.release_gil = true});
  on_cpu<&warns>(m, "warns(Tensor x) -> Tensor");
  on_cpu<&warns>(m, "warns_without_gil(Tensor x) -> Tensor", {.release_gil = true});
  on_cpu<&warns_of_the_past>(m, "warns_of_the_past(Tensor x) -> Tensor");
  on_cpu<&keep>(m, "keep(Tensor x, Tensor[] xs) -> ()");
  anywhere<&give_back>(m, "give_back() -> Tensor[]");
  on_cpu<&same_from_global>(m, "same_from_global(Tensor x) -> Tensor");
  on_cpu<&meet>(m, "meet(Tensor x, int milliseconds) -> int");
  on_cpu<&meet>(m, "meet_without_gil(Tensor x, int milliseconds) -> int", {.release_gil = true});
  on_cpu<&sum_of>(m, "sum_of(Tensor[] xs, Tensor y, Tensor? z=None) -> Tensor");
  on_cpu<&sum_of>(m, "sum_of_without_gil(Tensor[] xs, Tensor y, Tensor? z=None) -> Tensor", {.release_gil = true});
}

}  // namespace

TWINS(cppbehaviour, all)
