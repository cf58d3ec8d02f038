#include "call/operator.h"

#include <algorithm>

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

Operator::Operator(const c10::OperatorHandle& handle, Signature signature)
    : handle_(handle),
      pin_(c10::Dispatcher::singleton().registerName(handle.operator_name())),
      entry_(torch_compat::operator_entry(handle_)),
      schema_(handle.schema()),
      signature_(std::move(signature)),
      name_(c10::toString(handle.operator_name())),
      unsupported_(signature_.unsupported()) {
  if (is_view(schema_)) {
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

}  // namespace dutyfree::call
