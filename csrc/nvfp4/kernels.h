#pragma once

#include <cstddef>
#include <cstdint>

// What a CPU target provides: the inner loops of both operators, on plain memory, one thread's share of the work a
// call. Nothing here allocates, throws or knows of torch.
namespace dutyfree::nvfp4 {

enum class Element : std::uint8_t { bf16, fp16, e4m3, fp32 };

struct QuantizeRows {
  const void* input;  // rows of `columns` elements, one after the other
  Element element;
  std::int64_t columns;  // a multiple of 16
  const float* global_scale;
  std::int64_t global_scale_stride;  // 0: one for all rows
  std::uint8_t* values;              // columns / 2 bytes a row
  std::uint8_t* scale_factors;       // columns / 16 bytes a row, or swizzled; padding is not written
  bool swizzled;
};

// Columns of the result that a panel of packed weights is for.
constexpr int kPanel = 16;
// Bytes of a panel's codes for one block of 16 along K: see pack_weight.
constexpr int kPanelBlock = 128;

// A weight (N, K) in the order in which the kernels read it, made once by pack_weight. Rows from N up to the next
// multiple of 16 are zero.
struct PackedWeight {
  const std::uint8_t* codes;    // [panels][blocks][128]
  const std::uint16_t* scales;  // [panels][blocks][16], bf16, in which e4m3 is exact
  std::int64_t panels;
  std::int64_t blocks;
};

struct Gemm {
  // Activations as the operator gets them.
  const std::uint8_t* values;         // [rows][columns / 2]
  const std::uint8_t* scale_factors;  // swizzled
  // The rows of both, and of the result, that this call is for. Below, rows are counted from the first of these.
  std::int64_t first_row;
  std::int64_t rows;
  PackedWeight weight;
  // Activations as the target's pack_activations leaves them.
  std::byte* activations;
  float alpha;
  const float* bias;  // one a column of the result, or null
  void* out;          // [rows][columns]
  Element element;
  std::int64_t columns;
};

struct Kernels {
  const char* name;
  // Whether this machine can run them.
  bool (*supported)();
  void (*quantize_rows)(const QuantizeRows&, std::int64_t first, std::int64_t last);
  std::int64_t (*activation_bytes)(std::int64_t blocks);  // a row's
  void (*pack_activations)(const Gemm&, std::int64_t first, std::int64_t last);
  // All rows of the result, for panels from `first` up to `last`. `scratch` is the thread's own, scratch_bytes of it.
  void (*gemm)(const Gemm&, std::int64_t first, std::int64_t last, std::byte* scratch);
  std::int64_t (*scratch_bytes)(std::int64_t blocks);
};

// A weight's row-major codes and swizzled scale factors into the packed order, panels from `first` up to `last`.
void pack_weight(const std::uint8_t* values,
                 const std::uint8_t* scale_factors,
                 std::int64_t rows,
                 std::uint8_t* codes,
                 std::uint16_t* scales,
                 std::int64_t blocks,
                 std::int64_t first,
                 std::int64_t last);

// Rows of a matrix as bf16, exactly, without the global scale: [row - origin][K], rows from `first` up to `last`.
void decode_to_bf16(const std::uint8_t* values,
                    const std::uint8_t* scale_factors,
                    std::uint16_t* out,
                    std::int64_t origin,
                    std::int64_t blocks,
                    std::int64_t first,
                    std::int64_t last);

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_vnni_kernels;
extern const Kernels avx512_bf16_kernels;
#endif

}  // namespace dutyfree::nvfp4
