#pragma once

#include <torch/library.h>

#include <string>
#include <vector>

#include "dutyfree/op.h"

// The reference for operators of DUTYFREE_LIBRARY: what a block says, registered by PyTorch's own means. A block that
// is a template of its library defines the same operators twice, as `name_fast` and, never known to dutyfree,
// `name_slow`.
namespace twin {

// New versions for what is written to, which torch.library.custom_op's operators have and plain C++ ones don't.
inline void bump_versions(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t index = 0; index < arguments.size(); ++index) {
    const c10::IValue& value = (*stack)[stack->size() - arguments.size() + index];
    if (arguments[index].alias_info() == nullptr || !arguments[index].alias_info()->isWrite() || value.isNone()) {
      continue;
    }
    for (const at::Tensor& tensor : value.isTensor() ? std::vector{value.toTensor()} : value.toTensorVector()) {
      tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
}

class Operator {
 public:
  Operator(torch::Library& library, std::string name) : library_(library), name_(std::move(name)) {}

  template <auto function>
  Operator& impl(c10::DispatchKey key, dutyfree::ImplOptions = {}) {
    library_.impl(name_.c_str(), torch::dispatch(key, torch::CppFunction(function)));
    return *this;
  }
  template <auto function>
  Operator& fake() {
    return impl<function>(c10::DispatchKey::Meta);
  }
  template <auto function>
  Operator& autograd() {
    return impl<function>(c10::DispatchKey::Autograd);
  }

 private:
  torch::Library& library_;
  std::string name_;
};

class Library {
 public:
  static constexpr bool fast = false;

  explicit Library(torch::Library& library) : library_(library) {}

  Operator def(const std::string& schema) {
    const std::string name = schema.substr(0, schema.find('('));
    library_.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
    if (schema.find("!)") != std::string::npos) {
      library_.impl(name.c_str(), torch::dispatch(c10::DispatchKey::ADInplaceOrView,
                                                  torch::CppFunction::makeFromBoxedFunction<&bump_versions>()));
    }
    return Operator(library_, name);
  }
  template <auto>
  Operator def_of(const std::string&, const std::vector<std::string>&, const std::string& schema) {
    return def(schema);
  }

 private:
  torch::Library& library_;
};

class FastLibrary {
 public:
  static constexpr bool fast = true;

  explicit FastLibrary(dutyfree::Library& library) : library_(library) {}
  dutyfree::Operator def(const std::string& schema) { return library_.def(schema); }
  // The schema is made of the function, and has to come out as the one that is written down.
  template <auto function>
  dutyfree::Operator def_of(const std::string& name, const std::vector<std::string>& names, const std::string&) {
    return library_.def<function>(name, names);
  }

 private:
  dutyfree::Library& library_;
};

// The whole of an operator with one kernel for the CPU.
template <auto function, typename Library>
auto on_cpu(Library& m, const char* schema, dutyfree::ImplOptions options = {}) {
  auto op = m.def(schema);
  op.template impl<function>(c10::DispatchKey::CPU, options);
  return op;
}
// The same with a schema that is made of the function.
template <auto function, typename Library>
void inferred(Library& m, const char* name, const std::vector<std::string>& names, const char* schema) {
  m.template def_of<function>(name, names, schema).template impl<function>(c10::DispatchKey::CPU);
}
// The same without a tensor to tell the device.
template <auto function, typename Library>
auto anywhere(Library& m, const char* schema) {
  auto op = m.def(schema);
  op.template impl<function>(c10::DispatchKey::CompositeExplicitAutograd);
  return op;
}

}  // namespace twin

#define TWINS(name, block)           \
  DUTYFREE_LIBRARY(name##_fast, m) { \
    twin::FastLibrary library(m);    \
    block(library);                  \
  }                                  \
  TORCH_LIBRARY(name##_slow, m) {    \
    twin::Library library(m);        \
    block(library);                  \
  }
