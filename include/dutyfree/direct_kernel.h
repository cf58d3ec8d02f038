#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>

// What a library of operators and dutyfree's core agree on: how a kernel that stands in PyTorch's dispatch table is
// called without boxing. A library needs neither Python nor dutyfree to be loaded; the core finds its kernels in the
// dispatch tables, whichever of the two came first.
namespace dutyfree {

// Whatever changes below changes this name, so that a library and a core of different versions don't recognise each
// other's kernels: such calls take PyTorch's own path.
inline namespace abi_1 {

// One argument, by the form of its parameter. Borrowed from the caller for the time of the call.
struct Value {
  enum : std::int64_t { Absent = -1 };
  enum Number : std::int64_t { Integer, Real, Boolean };

  union {
    const void* data;  // a Tensor's at::Tensor, a Device's c10::Device, a Str's bytes, the elements of a list
    std::int64_t integer;
    double real;
    bool boolean;
  };
  // Elements of a list, bytes of a Str, for a Scalar a Number; Absent where an optional has no value.
  std::int64_t size;
};

// What a parameter is, apart from the C++ type that holds it. The elements of a list lie in `Value::data` as
// at::Tensor (undefined where an optional element is missing), int64_t, double or bool.
struct Parameter {
  enum class Kind : std::uint8_t { Tensor, Int, Float, Bool, Str, Scalar, DType, Device, Layout, MemoryFormat };

  Kind kind = Kind::Tensor;
  bool list = false;
  bool optional = false;
  bool optional_element = false;

  friend constexpr bool operator==(const Parameter&, const Parameter&) = default;
};

// Where a kernel leaves its results. Only one of the two is used.
struct Results {
  at::Tensor* tensors;        // room for as many as DirectKernel::tensor_results says, not yet constructed
  torch::jit::Stack* others;  // where a result is no tensor: all of them
};

// A kernel with a direct entry. Immutable once it is registered, so any thread may use it.
class __attribute__((visibility("default"))) DirectKernel : public c10::OperatorKernel {
 public:
  enum class Role : std::uint8_t {
    Body,
    Autograd,         // the body runs below autograd instead where no argument needs a gradient
    ADInplaceOrView,  // new versions for the mutated arguments, then on; has no entry
  };
  // Throws what the kernel throws.
  using Call = void(const Value* arguments, Results& results);

  Role role = Role::Body;
  bool releases_gil = false;  // the caller holds the GIL; the kernel runs without it
  Call* call = nullptr;
  const Parameter* parameters = nullptr;
  std::size_t parameter_count = 0;
  int tensor_results = 0;  // negative where a result is no tensor
};

}  // namespace abi_1
}  // namespace dutyfree
