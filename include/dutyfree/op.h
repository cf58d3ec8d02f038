#pragma once

#include <ATen/core/op_registration/infer_schema.h>
#include <c10/core/TensorOptions.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "dutyfree/kernels.h"
#include "dutyfree/schema.h"

// Operators whose kernels are C++ functions. One block defines them, registers their kernels with PyTorch's dispatcher
// and gives each kernel the direct entry by which dutyfree calls it from Python without boxing:
//
//   at::Tensor axpy(const at::Tensor& x, const at::Tensor& y, double a);
//
//   DUTYFREE_LIBRARY(my_ops, m) {
//     m.def("axpy(Tensor x, Tensor y, float a=1.0) -> Tensor")
//         .impl<&axpy>(at::kCPU)
//         .fake<&axpy_fake>()
//         .autograd<&axpy_autograd>();
//     m.def<&scale_>("scale_", {"x", "factor"}).impl<&scale_>(at::kCPU);  // the schema is the function's
//   }
//
// Every operator is PyTorch's own, whether dutyfree is in the process or not. docs/cpp.md has the types that kernels
// take and return.

// Hidden, as in the other headers but for what the core looks for: each shared library has these for itself, whatever
// it is compiled with. By default the loader would give all libraries of a process one `load_error`, and of two
// versions of this file one.
#pragma GCC visibility push(hidden)
namespace dutyfree {

struct ImplOptions {
  // The kernel runs without Python's global lock, so that other Python threads run meanwhile. PyTorch's own path always
  // does that; the direct path only if asked to, since it costs about 60 ns a call and 30 ns a tensor.
  bool release_gil = false;
};

// One operator while it is defined. Valid inside the block.
class Operator {
 public:
  // Registers a kernel for a device type or a dispatch key.
  template <auto function>
  Operator& impl(c10::DispatchKey key, ImplOptions options = {}) {
    auto kernel = std::make_unique<detail::FunctionKernel<function, detail::SignatureOf<function>>>();
    kernel->releases_gil = options.release_gil;
    return add<function>(key, std::move(kernel));
  }
  template <auto function>
  Operator& impl(c10::DeviceType device, ImplOptions options = {}) {
    return impl<function>(c10::computeDispatchKey(std::nullopt, std::nullopt, c10::Device(device)), options);
  }

  // Registers what makes the results' shapes and dtypes without data, for torch.compile and fake tensors.
  template <auto function>
  Operator& fake() {
    return impl<function>(c10::DispatchKey::Meta);
  }

  // Registers what runs instead of the body where an argument needs a gradient: a function of the same signature that
  // calls `apply` of a torch::autograd::Function, whose forward calls the operator under at::AutoDispatchBelowAutograd.
  template <auto function>
  Operator& autograd() {
    return add<function>(c10::DispatchKey::Autograd,
                         std::make_unique<detail::AutogradKernel<function, detail::SignatureOf<function>>>(name_));
  }

 private:
  friend class Library;
  Operator(std::vector<c10::RegistrationHandleRAII>& registrations, c10::OperatorName name)
      : registrations_(registrations), name_(std::move(name)) {}

  template <auto function, typename Kernel>
  Operator& add(c10::DispatchKey key, std::unique_ptr<Kernel> kernel) {
    using Signature = detail::SignatureOf<function>;
    detail::check_written<function>(detail::find(name_).schema());
    registrations_
        .push_back(c10::Dispatcher::singleton()
                       .registerImpl(name_, key,
                                     c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::move(kernel)),
                                     c10::impl::CppSignature::make<Signature>(),
                                     std::make_unique<
                                         c10::FunctionSchema>(c10::inferFunctionSchemaFlattenedReturns<Signature>()),
                                     detail::kDebug));
    return *this;
  }

  std::vector<c10::RegistrationHandleRAII>& registrations_;
  c10::OperatorName name_;
};

// The operators of one block. Their registrations live as long as the shared library that the block is in.
class Library {
 public:
  Library(const char* name_space, const char* file, std::uint32_t line)
      : library_(torch::Library::FRAGMENT, name_space, std::nullopt, file, line), name_space_(name_space) {}

  // Defines an operator by its schema: "name(Tensor x, int n=1) -> Tensor", "name.overload(...)".
  Operator def(const std::string& schema) { return define(torch::jit::parseSchema(schema)); }
  // Defines an operator with the schema of a function: "name" or "name.overload", and the names of its arguments.
  template <auto function>
  Operator def(const std::string& name, const std::vector<std::string>& arguments = {}) {
    return define(detail::schema_of<function>(name, arguments));
  }

  // The operators defined so far, a line each.
  const std::string& defined() const { return defined_; }

 private:
  Operator define(c10::FunctionSchema schema) {
    schema.setNamespaceIfNotSet(name_space_.c_str());
    c10::OperatorName name = schema.operator_name();
    bool writes = false;
    for (const c10::Argument& argument : schema.arguments()) {
      writes |= argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    }
    library_.def(std::move(schema), {at::Tag::pt2_compliant_tag});
    defined_ += c10::toString(name) + '\n';
    if (writes) {
      registrations_.push_back(c10::Dispatcher::singleton()
                                   .registerImpl(name, c10::DispatchKey::ADInplaceOrView,
                                                 c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<
                                                                                           detail::VersionKernel>()),
                                                 std::nullopt, nullptr, detail::kDebug));
    }
    return Operator(registrations_, std::move(name));
  }

  torch::Library library_;
  std::string name_space_;
  std::string defined_;
  std::vector<c10::RegistrationHandleRAII> registrations_;
};

namespace detail {

// The operators that this shared library has defined, a line each. Written while the library is loaded.
inline std::string& defined_operators() {
  static std::string names;
  return names;
}
// Why a block of this shared library did not do what it says, or empty. Written while the library is loaded.
inline std::string& load_error() {
  static std::string error;
  return error;
}

// Runs a block when its shared library is loaded, and takes back what it registered when that is unloaded.
class Block {
 public:
  Block(const char* name_space, void (*block)(Library&), const char* file, std::uint32_t line) {
    try {
      library_.emplace(name_space, file, line);
      block(*library_);
      defined_operators() += library_->defined();
    } catch (const c10::Error& error) {
      failed(error.what_without_backtrace());  // it would show the loader's frames
    } catch (const std::exception& error) {
      failed(error.what());
    }
  }

 private:
  // Inside a handler.
  void failed(const char* error) {
    library_.reset();
    // An exception can't leave the initialisation of a shared library, it ends the process. dutyfree.load_library
    // says of which library it will ask for the error and raise it; whoever else loads one, perhaps because that one
    // needs it, must not go on without its operators.
    const char* asked = std::getenv("DUTYFREE_LOADS_LIBRARY");
    Dl_info here{};
    if (asked == nullptr || dladdr(reinterpret_cast<const void*>(&load_error), &here) == 0 ||
        std::string_view(here.dli_fname) != asked) {
      throw;
    }
    load_error() += (load_error().empty() ? "" : "\n") + std::string(error);
  }

  std::optional<Library> library_;
};

}  // namespace detail
}  // namespace dutyfree
#pragma GCC visibility pop

// For dutyfree.load_library, which looks them up in the one library that it has loaded.
extern "C" __attribute__((weak, visibility("default"))) const char* dutyfree_defined_operators() {
  return dutyfree::detail::defined_operators().c_str();
}
extern "C" __attribute__((weak, visibility("default"))) const char* dutyfree_load_error() {
  return dutyfree::detail::load_error().c_str();
}

#define DUTYFREE_CONCATENATE_(first, second) first##second
#define DUTYFREE_CONCATENATE(first, second) DUTYFREE_CONCATENATE_(first, second)

// NOLINTBEGIN(bugprone-macro-parentheses): a parameter's name can't be in parentheses
// DUTYFREE_LIBRARY(name_space, m) { m.def(...).impl<...>(...); }
// At namespace scope, in any number of source files for one namespace.
#define DUTYFREE_LIBRARY(name_space, m) DUTYFREE_LIBRARY_(name_space, m, __COUNTER__)
#define DUTYFREE_LIBRARY_(name_space, m, number)                                                                      \
  static void DUTYFREE_CONCATENATE(dutyfree_block_, number)(::dutyfree::Library & m);                                 \
  static const ::dutyfree::detail::Block DUTYFREE_CONCATENATE(dutyfree_registered_,                                   \
                                                              number)(#name_space,                                    \
                                                                      &DUTYFREE_CONCATENATE(dutyfree_block_, number), \
                                                                      __FILE__, __LINE__);                            \
  static void DUTYFREE_CONCATENATE(dutyfree_block_, number)(::dutyfree::Library & m)
// NOLINTEND(bugprone-macro-parentheses)
