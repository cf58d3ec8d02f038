#include "nvfp4/cuda/library.h"

#include <dlfcn.h>

#include <c10/util/Exception.h>

#include <filesystem>

namespace dutyfree::nvfp4::cuda {

namespace {

constexpr const char* kName = "libdutyfree_nvfp4_cuda.so";

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  TORCH_CHECK(false, "dutyfree's CUDA kernels for NVFP4 cannot be used: ", problem, " (looked for ", path,
              ").\nThey are built together with dutyfree where nvcc, 12.8 or later, is on PATH or CUDA_HOME is set: "
              "`pip install --no-build-isolation .` in a checkout, or `make cuda` there, which gets an nvcc itself.");
}

template <typename Function>
void find(void* library, const std::string& path, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) refuse(path, std::string("the library has no ") + name + ", so it is of another version");
}

std::string path_beside_this_code() {
  Dl_info info;
  // Any address in this file's code.
  if (dladdr(reinterpret_cast<void*>(&path_beside_this_code), &info) == 0 || info.dli_fname == nullptr) return kName;
  return std::filesystem::path(info.dli_fname).replace_filename(kName).string();
}

}  // namespace

void Library::check(int error, const char* what) const {
  TORCH_CHECK(error == 0, what, " failed with CUDA error ", error, ": ", error_text(error));
}

Library load(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* problem = dlerror();
    refuse(path, problem != nullptr ? problem : "it does not load");
  }
  decltype(&dutyfree_nvfp4_interface) interface = nullptr;
  find(handle, path, "dutyfree_nvfp4_interface", interface);
  if (interface() != DUTYFREE_NVFP4_CUDA_INTERFACE) refuse(path, "the library is of another version");
  Library library{};
  find(handle, path, "dutyfree_nvfp4_error_text", library.error_text);
  find(handle, path, "dutyfree_nvfp4_capability", library.capability);
  find(handle, path, "dutyfree_nvfp4_quantize", library.quantize);
  find(handle, path, "dutyfree_nvfp4_dequantize", library.dequantize);
  return library;
}

const Library& library() {
  static const Library loaded = load(path_beside_this_code());
  return loaded;
}

}  // namespace dutyfree::nvfp4::cuda
