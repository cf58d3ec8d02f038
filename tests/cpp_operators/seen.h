#pragma once

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <sstream>
#include <string>
#include <type_traits>

// A kernel of any parameters that returns, as text, what it was given and the thread's state that it ran in.
namespace seen_by_kernels {

inline void write(std::ostream& out, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    out << "undefined";
    return;
  }
  out << tensor.toString() << tensor.sizes() << " " << tensor.key_set();
  if (!tensor.is_inference()) {
    out << " version " << tensor._version();
  }
  out << (tensor.requires_grad() ? " requires grad" : "");
  if (tensor.layout() == at::kStrided) {
    out << tensor.strides() << "+" << tensor.storage_offset() << "\n" << tensor;
  }
}
inline void write(std::ostream& out, const std::string& value) { out << '"' << value << '"'; }
inline void write(std::ostream& out, std::string_view value) { out << "view '" << value << "'"; }
inline void write(std::ostream& out, bool value) { out << (value ? "true" : "false"); }
inline void write(std::ostream& out, double value) { out << "double " << std::hexfloat << value; }
inline void write(std::ostream& out, std::int64_t value) { out << "int " << value; }
inline void write(std::ostream& out, const c10::SymInt& value) { out << "SymInt " << value; }
inline void write(std::ostream& out, const at::Scalar& value) { out << "Scalar " << value.type() << " " << value; }
inline void write(std::ostream& out, at::ScalarType value) { out << "dtype " << value; }
inline void write(std::ostream& out, at::Device value) { out << "device " << value; }
inline void write(std::ostream& out, at::Layout value) { out << "layout " << value; }
inline void write(std::ostream& out, at::MemoryFormat value) { out << "format " << value; }

template <typename T>
void write(std::ostream& out, const std::optional<T>& value);
template <typename List>
void write_all(std::ostream& out, const List& list) {
  out << "[";
  for (std::size_t index = 0; index < list.size(); ++index) {
    write(out, static_cast<typename List::value_type>(list[index]));
    out << ", ";
  }
  out << "]";
}
template <typename T>
void write(std::ostream& out, const c10::ArrayRef<T>& list) {
  out << "ArrayRef";
  write_all(out, list);
}
template <typename T>
void write(std::ostream& out, const std::vector<T>& list) {
  out << "vector";
  write_all(out, list);
}
template <typename T>
void write(std::ostream& out, const c10::List<T>& list) {
  out << "List[";
  for (std::size_t index = 0; index < list.size(); ++index) {
    write(out, list.get(index));
    out << ", ";
  }
  out << "]";
}
template <typename T>
void write(std::ostream& out, const c10::OptionalArrayRef<T>& list) {
  write(out, list.has_value() ? std::optional(*list) : std::nullopt);
}
template <typename T>
void write(std::ostream& out, const std::optional<T>& value) {
  if (value.has_value()) {
    write(out, *value);
  } else {
    out << "nullopt";
  }
}

inline void write_state(std::ostream& out) {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  out << "grad mode " << c10::GradMode::is_enabled() << ", inference mode " << c10::InferenceMode::is_enabled()
      << ", included " << local.included_ << ", excluded " << local.excluded_;
}

template <typename... T>
std::string seen(T... arguments) {
  std::ostringstream out;
  ((write(out, arguments), out << "; "), ...);
  write_state(out);
  return out.str();
}

}  // namespace seen_by_kernels
