#include "call/operator.h"

#include <algorithm>

#include <torch/csrc/utils/python_arg_parser.h>

#include <unordered_set>

#include "call/typed_arguments.h"
#include "torch_compat/definition.h"
#include "torch_compat/direct_kernel.h"
#include "torch_compat/dispatch_table.h"

namespace dutyfree::call {
namespace {

bool has_tag(const c10::OperatorHandle& handle, at::Tag tag) {
  const auto tags = handle.getTags();
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

// A result that aliases an argument without writing to it is a view: PyTorch tracks those.
bool is_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

// "add" of "aten::add".
std::string short_name(const c10::FunctionSchema& schema) { return schema.name().substr(schema.name().find("::") + 2); }

// Every operator there is. Guarded by the GIL. Never destroyed: what is left of Python at its end may hold operators.
std::unordered_set<Operator*>& living() {
  static auto* operators = new std::unordered_set<Operator*>();
  return *operators;
}

}  // namespace

std::unique_ptr<Operator> Operator::find(const std::string& name) {
  const auto dot = name.find('.');
  const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                     dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
  auto signature = Signature::compile(handle.schema());
  if (!signature) {
    return nullptr;
  }
  return std::unique_ptr<Operator>(new Operator(handle, std::move(*signature)));
}

void Operator::forget_lost() {
  std::vector<Operator*> lost;
  std::copy_if(living().begin(), living().end(), std::back_inserter(lost),
               [](const Operator* op) { return op->lost(); });
  for (Operator* op : lost) {
    // What dies with the kernels may have taken other operators with it.
    if (living().count(op) != 0) {
      op->kernels_.clear();
    }
  }
}

Operator::Operator(const c10::OperatorHandle& handle, Signature signature)
    : handle_(handle),
      pin_(c10::Dispatcher::singleton().registerName(handle.operator_name())),
      entry_(torch_compat::operator_entry(handle_)),
      schema_(handle.schema()),
      signature_(std::move(signature)),
      name_(c10::toString(handle.operator_name())),
      takes_numbers_as_tensors_(torch::should_allow_numbers_as_tensors(short_name(schema_))),
      lost_(torch_compat::definition_lost(handle_)),
      unsupported_(signature_.unsupported()) {
  living().insert(this);
  returns_view_ = is_view(schema_);
  if (returns_view_) {
    unsupported_ = "a result is a view of an argument";
  }
  returns_out_ = has_tag(handle_, at::Tag::out);
  if (has_tag(handle_, at::Tag::inplace)) {
    returns_mutated_ = true;
    returned_slots_ = {0};
  } else if (returns_out_) {
    returns_mutated_ = true;
    for (const std::uint8_t slot : signature_.mutated_slots()) {
      if (slot >= signature_.positional_count()) {
        returned_slots_.push_back(slot);
      }
    }
  }
}

void Operator::know_if_direct(const c10::KernelFunction& kernel) {
  const DirectKernel* direct = torch_compat::direct_kernel(kernel);
  if (direct == nullptr || returns_view_ || kernels_.find(torch_compat::kernel_identity(kernel)) != nullptr) {
    return;
  }
  KnownKernel::Role role = KnownKernel::Role::ADInplaceOrView;
  if (direct->role != DirectKernel::Role::ADInplaceOrView) {
    role = direct->role == DirectKernel::Role::Autograd ? KnownKernel::Role::Autograd : KnownKernel::Role::Backend;
    if (!takes_typed_arguments(signature_, *direct)) {
      return;
    }
  }
  torch_compat::keep_library_of(*direct);
  KnownKernel known(role, kernel);
  known.direct = direct;
  kernels_.add(std::move(known));
}

Operator::~Operator() { living().erase(this); }

}  // namespace dutyfree::call
