// The empty kernel as a function of tvm-ffi.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace {

void three(tvm::ffi::TensorView, tvm::ffi::TensorView, tvm::ffi::TensorView, std::int64_t) {}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(three, three);
