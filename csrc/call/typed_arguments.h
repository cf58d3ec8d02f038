#pragma once

#include <c10/util/SmallVector.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "call/arguments.h"
#include "dutyfree/direct_kernel.h"

namespace dutyfree::call {

// A kernel that returns more tensors is called as PyTorch calls it.
inline constexpr int kMostTensorResults = 16;

// Whether a kernel's parameters are the schema's arguments, in a form that TypedArguments makes.
bool takes_typed_arguments(const Signature& signature, const DirectKernel& kernel);

// One call's arguments as a C++ kernel takes them, on the stack of the call. The values refer to the Python objects,
// which the caller holds. Belongs to the call's thread; what makes it needs the GIL.
class TypedArguments {
 public:
  TypedArguments() = default;
  TypedArguments(const TypedArguments&) = delete;
  TypedArguments& operator=(const TypedArguments&) = delete;

  // Checks and converts placed arguments and gathers the tensors' keys in `bound`. Has no effect that a user can see.
  // On failure PyTorch has to make the conversion or the error, and `bound` has the reason; no Python error is set.
  bool convert(const Signature& signature, BoundArguments& bound);

  // Makes the values own their tensors: what others do to the Python objects while the GIL is released must not reach
  // the kernel.
  void own_tensors(const Signature& signature);

  const Value* values() const { return values_.data(); }

 private:
  // Where the elements of lists lie: on the stack as long as there are few. Owns the tensors in it.
  class Room {
   public:
    Room() {}  // NOLINT(modernize-use-equals-default): a defaulted one would clear the room
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room();

    template <typename T>
    T* take(std::size_t count);
    // A tensor at the next place that `take` gave for tensors.
    void own(at::Tensor* place, const at::Tensor& tensor) { tensors_.push_back(new (place) at::Tensor(tensor)); }

   private:
    static constexpr std::size_t kWords = 48;
    std::array<std::uint64_t, kWords> words_;
    std::size_t used_ = 0;
    std::vector<std::unique_ptr<std::uint64_t[]>> more_;
    c10::SmallVector<at::Tensor*, 16> tensors_;
  };

  bool convert_single(ValueKind kind, PyObject* object, Value& value);
  bool convert_list(const ValueType& type, PyObject* sequence, Value& value, BoundArguments& bound);
  template <typename T, typename Read>
  bool take_each(PyObject* const* items, std::size_t count, Value& value, Read read);
  Room& room() { return room_.has_value() ? *room_ : room_.emplace(); }

  // Uninitialised beyond the schema's arguments.
  std::array<Value, kMaxArguments> values_;
  std::optional<Room> room_;
};

}  // namespace dutyfree::call
