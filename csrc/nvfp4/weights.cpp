#include "nvfp4/weights.h"

#include <ATen/Functions.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <list>
#include <mutex>
#include <unordered_map>

#include "autotune/host.h"
#include "nvfp4/format.h"
#include "nvfp4/tensors.h"
#include "torch_compat/parallel.h"
#include "torch_compat/tensor.h"

namespace dutyfree::nvfp4 {
namespace {

using torch_compat::parallel;

// Which bytes a tensor has, and how often they have been written to.
class Contents {
 public:
  explicit Contents(const at::Tensor& tensor)
      : storage_(tensor.storage().getWeakStorageImpl()),
        data_(tensor.const_data_ptr()),
        rows_(tensor.size(0)),
        bytes_(tensor.numel()),
        counter_(tensor.unsafeGetTensorImpl()->version_counter()),
        version_(counter_.current_version()) {}

  const void* data() const { return data_; }
  bool expired() const { return storage_.expired(); }
  // Whether both are of the same bytes, be it at different times.
  bool is_of(const Contents& other) const {
    return storage_._unsafe_get_target() == other.storage_._unsafe_get_target() && data_ == other.data_ &&
           rows_ == other.rows_ && bytes_ == other.bytes_;
  }
  bool is(const at::Tensor& tensor) const {
    const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
    return storage_._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
           data_ == tensor.const_data_ptr() && rows_ == tensor.size(0) && bytes_ == tensor.numel() &&
           torch_compat::counter_identity(counter_) == torch_compat::counter_identity(counter) &&
           version_ == counter.current_version();
  }

 private:
  // Weak, but enough that no other storage gets its address; the same goes for the counter, which is owned.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const void* data_;
  std::int64_t rows_;
  std::int64_t bytes_;
  c10::VariableVersion counter_;
  std::uint32_t version_;
};

struct Entry {
  Form form;
  Contents weight;
  Contents weight_scale;
  std::shared_ptr<const Packed> packed;

  const void* key() const { return weight.data(); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(packed->memory.nbytes()); }
};

Entry entry_of(const at::Tensor& weight, const at::Tensor& weight_scale, Form form) {
  return {form, Contents(weight), Contents(weight_scale), nullptr};
}

class Cache {
 public:
  // For a fork.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  std::shared_ptr<const Packed> find(const at::Tensor& weight, const at::Tensor& weight_scale, Form form) {
    const std::lock_guard lock(mutex_);
    drop_one_expired();
    const auto found = by_data_.equal_range(weight.const_data_ptr());
    for (auto at = found.first; at != found.second; ++at) {
      const std::list<Entry>::iterator entry = at->second;
      if (entry->form == form && entry->weight.is(weight) && entry->weight_scale.is(weight_scale)) {
        if (next_to_look_at_ == entry) {
          ++next_to_look_at_;  // or it would come along to the front, and never get to the others
        }
        entries_.splice(entries_.begin(), entries_, entry);
        return entry->packed;
      }
    }
    return nullptr;
  }

  void keep(Entry entry) {
    const std::lock_guard lock(mutex_);
    ++made_;
    drop_expired();
    drop_same(entry);  // an older version of it is of no more use
    bytes_ += entry.bytes();
    entries_.push_front(std::move(entry));
    by_data_.emplace(entries_.front().key(), entries_.begin());
    drop_over_limit();
  }

  void forget(const Entry& entry) {
    const std::lock_guard lock(mutex_);
    drop_same(entry);
  }

  void count_made() {
    const std::lock_guard lock(mutex_);
    ++made_;
  }

  PackedWeights state() {
    const std::lock_guard lock(mutex_);
    drop_expired();
    return {static_cast<std::int64_t>(entries_.size()), bytes_, limit_, made_};
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
    by_data_.clear();
    next_to_look_at_ = entries_.end();
    bytes_ = 0;
  }
  void limit(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    drop_over_limit();
  }

 private:
  // All below: with the mutex held.
  void drop(std::list<Entry>::iterator entry) {
    const auto found = by_data_.equal_range(entry->key());
    for (auto at = found.first; at != found.second; ++at) {
      if (at->second == entry) {
        by_data_.erase(at);
        break;
      }
    }
    if (next_to_look_at_ == entry) {
      ++next_to_look_at_;
    }
    bytes_ -= entry->bytes();
    entries_.erase(entry);
  }

  void drop_same(const Entry& entry) {
    const auto found = by_data_.equal_range(entry.key());
    for (auto at = found.first; at != found.second;) {
      const std::list<Entry>::iterator other = at->second;
      ++at;
      if (other->form == entry.form && other->weight.is_of(entry.weight) &&
          other->weight_scale.is_of(entry.weight_scale)) {
        drop(other);
      }
    }
  }

  static bool expired(const Entry& entry) { return entry.weight.expired() || entry.weight_scale.expired(); }

  void drop_expired() {
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const auto here = entry++;
      if (expired(*here)) {
        drop(here);
      }
    }
  }
  // A look at one more entry with each call, so that what is gone goes soon, at a cost that does not grow.
  void drop_one_expired() {
    if (next_to_look_at_ == entries_.end()) {
      next_to_look_at_ = entries_.begin();
    }
    if (next_to_look_at_ != entries_.end()) {
      const auto here = next_to_look_at_++;
      if (expired(*here)) {
        drop(here);
      }
    }
  }
  void drop_over_limit() {
    while (bytes_ > limit_ && !entries_.empty()) {
      drop(std::prev(entries_.end()));
    }
  }

  // A quarter of the machine's memory, or of what the process's control group may take of it.
  static std::int64_t default_limit() {
    std::int64_t memory = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
    std::int64_t of_group = 0;
    if (std::ifstream("/sys/fs/cgroup/memory.max") >> of_group) {  // "max", which is no number, without a limit
      memory = std::min(memory, of_group);
    }
    return memory / 4;
  }

  std::mutex mutex_;          // guards all that follows
  std::list<Entry> entries_;  // the last used first
  std::unordered_multimap<const void*, std::list<Entry>::iterator> by_data_;
  std::list<Entry>::iterator next_to_look_at_ = entries_.end();
  std::int64_t bytes_ = 0;
  std::int64_t limit_ = default_limit();
  std::int64_t made_ = 0;
};

Cache& cache() {
  // Never destroyed: a thread may call an operator while the process ends.
  static Cache& only = []() -> Cache& {
    // A child must not find the lock held by a thread that it does not have.
    pthread_atfork([] { cache().lock(); }, [] { cache().unlock(); }, [] { cache().unlock(); });
    return *new Cache;
  }();
  return only;
}

std::shared_ptr<const Packed> pack(const at::Tensor& weight, const at::Tensor& weight_scale, Form form) {
  const LongWork long_work({weight, weight_scale});
  const auto packed = std::make_shared<Packed>();
  const std::int64_t rows = weight.size(0);
  const std::int64_t blocks = weight.size(1) * 2 / kBlock;
  const auto* values = bytes_of(weight);
  const auto* scale_factors = bytes_of(weight_scale);
  const at::TensorOptions bytes = at::TensorOptions().dtype(c10::kByte);
  if (form == Form::panels) {
    const std::int64_t panels = (rows + kPanel - 1) / kPanel;
    const std::int64_t code_bytes = panels * blocks * kPanelBlock;
    const std::int64_t scale_bytes = panels * blocks * kPanel * static_cast<std::int64_t>(sizeof(std::uint16_t));
    packed->memory = at::empty({code_bytes + scale_bytes}, bytes);
    auto* codes = packed->memory.mutable_data_ptr<std::uint8_t>();
    auto* scales = reinterpret_cast<std::uint16_t*>(codes + code_bytes);
    parallel(panels, 4, [&](std::int64_t first, std::int64_t last) {
      pack_weight(values, scale_factors, rows, codes, scales, blocks, first, last);
    });
    packed->panels = {codes, scales, panels, blocks};
  } else {
    packed->memory = at::empty({rows, blocks * kBlock}, bytes.dtype(c10::kBFloat16));
    auto* out = static_cast<std::uint16_t*>(packed->memory.mutable_data_ptr());
    parallel(rows, 16, [&](std::int64_t first, std::int64_t last) {
      decode_to_bf16(values, scale_factors, out, 0, blocks, first, last);
    });
  }
  return packed;
}

}  // namespace

std::shared_ptr<const Packed> packed_weight(const at::Tensor& weight, const at::Tensor& weight_scale, Form form) {
  // An inference tensor counts no versions, so there is no telling whether it is what it was.
  if (weight.is_inference() || weight_scale.is_inference()) {
    static std::atomic_flag warned;
    if (!warned.test_and_set()) {
      autotune::host::warn(
          "trtllm::nvfp4_gemm: the weight or its scale factors were made in inference mode, where PyTorch does not "
          "count changes to a tensor, so the weight is repacked at every call. Make it outside "
          "torch.inference_mode().");
    }
    cache().count_made();
    return pack(weight, weight_scale, form);
  }
  std::shared_ptr<const Packed> packed = cache().find(weight, weight_scale, form);
  if (packed == nullptr) {
    // Without the lock: two threads may do it twice at a weight's first call, and neither waits for other weights. What
    // is changed meanwhile has a later version than the entry.
    Entry entry = entry_of(weight, weight_scale, form);
    packed = pack(weight, weight_scale, form);
    entry.packed = packed;
    cache().keep(std::move(entry));
  }
  return packed;
}

PackedWeights packed_weights() { return cache().state(); }
void forget_packed_weights() { cache().clear(); }
void forget_packed_weight(const at::Tensor& weight, const at::Tensor& weight_scale, Form form) {
  if (!weight.is_inference() && !weight_scale.is_inference()) {
    cache().forget(entry_of(weight, weight_scale, form));
  }
}
void limit_packed_weights(std::int64_t bytes) { cache().limit(bytes); }

}  // namespace dutyfree::nvfp4
