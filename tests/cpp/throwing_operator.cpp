// An operator whose kernel throws what it is told to, for tests/test_accelerate_boxed_exceptions.py.
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <functional>
#include <map>
#include <new>
#include <stdexcept>
#include <string>

namespace {

template <class Exception>
void throw_standard() {
  throw Exception("from the kernel");
}

const std::map<std::string, std::function<void()>>& exceptions() {
  static const std::map<std::string, std::function<void()>> all = {
      {"std::runtime_error", throw_standard<std::runtime_error>},
      {"std::out_of_range", throw_standard<std::out_of_range>},
      {"std::invalid_argument", throw_standard<std::invalid_argument>},
      {"std::domain_error", throw_standard<std::domain_error>},
      {"std::length_error", throw_standard<std::length_error>},
      {"std::range_error", throw_standard<std::range_error>},
      {"std::overflow_error", throw_standard<std::overflow_error>},
      {"std::bad_alloc", [] { throw std::bad_alloc(); }},
      {"an int", [] { throw 3; }},  // NOLINT(bugprone-std-exception-baseclass): that is the point
      {"TORCH_CHECK", [] { TORCH_CHECK(false, "from the kernel"); }},
      {"TORCH_CHECK_INDEX", [] { TORCH_CHECK_INDEX(false, "from the kernel"); }},
      {"TORCH_CHECK_VALUE", [] { TORCH_CHECK_VALUE(false, "from the kernel"); }},
      {"TORCH_CHECK_TYPE", [] { TORCH_CHECK_TYPE(false, "from the kernel"); }},
      {"TORCH_CHECK_NOT_IMPLEMENTED", [] { TORCH_CHECK_NOT_IMPLEMENTED(false, "from the kernel"); }},
      {"TORCH_CHECK_LINALG", [] { TORCH_CHECK_LINALG(false, "from the kernel"); }},
  };
  return all;
}

at::Tensor throws(const at::Tensor& x, c10::string_view exception) {
  exceptions().at(std::string(exception))();
  return x.clone();
}

}  // namespace

TORCH_LIBRARY(dutyfree_cpp_tests, library) {
  library.def("throws(Tensor x, str exception) -> Tensor");
  library.impl("throws", c10::DispatchKey::CPU, &throws);
}
