#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "autotune/tactic_table.h"
#include "torch_compat/tensor.h"

namespace dutyfree::autotune {

// Which sizes of a call's tensors are bucketed: a bit a dimension, by tensor.
inline constexpr std::size_t kMostTensors = 16;
using DynamicDims = std::array<std::uint64_t, kMostTensors>;

// Types, devices and numbers of dimensions of a call's tensors: what the configuration says of them. One word a tensor.
class TensorKinds {
 public:
  static constexpr std::uint32_t kNone = ~0U;

  void add(std::uint32_t kind) noexcept { words_[count_++] = kind; }
  void add(c10::ScalarType type, c10::DeviceType device, std::size_t dims) noexcept {
    add((static_cast<std::uint32_t>(type) << 16U) |
        (static_cast<std::uint32_t>(static_cast<std::uint8_t>(device)) << 8U) | static_cast<std::uint32_t>(dims));
  }
  bool operator==(const TensorKinds& other) const noexcept {
    return count_ == other.count_ && std::equal(words_.begin(), words_.begin() + count_, other.words_.begin());
  }

  // "cpu bfloat16 [~, =], none": what is bucketed has a tilde.
  std::string text(const DynamicDims& dynamic) const;

 private:
  std::array<std::uint32_t, kMostTensors> words_;
  std::uint32_t count_ = 0;
};

// A call's tensors, read for a look-up: nothing is allocated, nothing runs Python code. Needs the GIL.
class TensorKey {
 public:
  enum class Outcome : std::uint8_t {
    Read,
    NotPlain,   // a tensor whose sizes or memory are not what they seem: fake, meta, sparse, functorch's, …
    WrongType,  // neither a tensor nor None
    TooMany,    // tensors or dimensions
  };

  [[gnu::always_inline]] Outcome read(PyObject* const* args, std::size_t count, const DynamicDims& dynamic) noexcept {
    if (count > kMostTensors) [[unlikely]] {
      return Outcome::TooMany;
    }
    for (std::size_t index = 0; index < count; ++index) {
      if (!torch_compat::is_tensor(args[index])) [[unlikely]] {
        if (args[index] != Py_None) {
          return Outcome::WrongType;
        }
        kinds_.add(TensorKinds::kNone);
        continue;
      }
      const c10::TensorImpl& tensor = *torch_compat::tensor_impl(args[index]);
      const c10::DeviceType device = tensor.device_type();
      if (!torch_compat::has_plain_keys(tensor.key_set()) || device == c10::DeviceType::Meta ||
          tensor.has_symbolic_sizes_strides()) [[unlikely]] {
        return Outcome::NotPlain;
      }
      const c10::IntArrayRef sizes = tensor.sizes();
      if (size_ + sizes.size() > dims_.size()) [[unlikely]] {
        return Outcome::TooMany;
      }
      kinds_.add(c10::typeMetaToScalarType(tensor.dtype()), device, sizes.size());
      std::uint64_t bucketed = dynamic[index];
      for (const std::int64_t size : sizes) {
        dims_[size_++] = (bucketed & 1U) != 0 ? bucket(size) : size;
        bucketed >>= 1U;
      }
    }
    return Outcome::Read;
  }

  const TensorKinds& kinds() const noexcept { return kinds_; }
  std::span<const std::int64_t> dims() const noexcept { return std::span(dims_).first(size_); }

 private:
  // Only what is read is written.
  std::array<std::int64_t, 64> dims_;
  std::size_t size_ = 0;
  TensorKinds kinds_;
};

}  // namespace dutyfree::autotune
