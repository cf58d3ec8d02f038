#pragma once

// What libdutyfree_nvfp4_cuda.so exports: a plain C interface, so that neither side needs the other's headers. nvcc
// builds the library without torch, and the core, which loads it on first use (library.h), is built without a CUDA
// toolkit.
//
// Every function may be called from any thread. Kernels are put on the stream that is given, and nothing waits for
// them. Pointers are to device memory, matrices are in rows without gaps; the caller keeps them alive until the stream
// is done with them. Where the result is an int it is a cudaError, 0 for success; dutyfree_nvfp4_error_text explains
// it.

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): C

// Changes with anything below, so that a library of another build is refused instead of misread.
#define DUTYFREE_NVFP4_CUDA_INTERFACE 1

#ifdef __cplusplus
extern "C" {
#endif

enum DutyfreeNvfp4Dtype {  // NOLINT(performance-enum-size): an int in C
  kDutyfreeFloat32 = 0,
  kDutyfreeFloat16 = 1,
  kDutyfreeBFloat16 = 2,
  kDutyfreeFloat8E4M3 = 3,  // input only
};

struct DutyfreeNvfp4Quantize {
  const void* input;          // rows x columns elements, 16-byte aligned
  const float* global_scale;  // one number, or one a row
  uint8_t* values;            // rows x columns / 2 bytes, 8-byte aligned
  // rows x columns / 16 bytes, or what dutyfree::nvfp4::swizzled_size gives: every byte is written, padding with 0.
  uint8_t* scale_factors;
  int64_t rows;
  int64_t columns;  // a multiple of 16
  void* stream;     // a cudaStream_t
  int device;
  int dtype;  // the input's
  int scale_per_row;
  int swizzled;
};

struct DutyfreeNvfp4Dequantize {
  const uint8_t* values;         // rows x columns / 2 bytes, 8-byte aligned
  const uint8_t* scale_factors;  // as above
  // One number, one a row, or null. Null leaves the global scale out: e2m1 times e4m3, which each of the output's types
  // holds exactly. Otherwise that product is divided by the global scale in float32, and rounded once more to the type.
  const float* global_scale;
  void* output;  // rows x columns elements, 16-byte aligned
  int64_t rows;
  int64_t columns;
  void* stream;
  int device;
  int dtype;  // the output's
  int scale_per_row;
  int swizzled;
};

// DUTYFREE_NVFP4_CUDA_INTERFACE of the library's build.
int dutyfree_nvfp4_interface(void);
// Static text, never null.
const char* dutyfree_nvfp4_error_text(int error);
// Ten times the major compute capability plus the minor one: 90, 100, 103, 120.
int dutyfree_nvfp4_capability(int device, int* capability);
int dutyfree_nvfp4_quantize(const struct DutyfreeNvfp4Quantize* call);
int dutyfree_nvfp4_dequantize(const struct DutyfreeNvfp4Dequantize* call);

#ifdef __cplusplus
}
#endif
