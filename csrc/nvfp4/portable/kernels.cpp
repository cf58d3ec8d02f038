// Compiled for whatever the build is for, with the compiler's own vectors.
#include "nvfp4/kernels.h"

#include "nvfp4/gemm_int8.h"
#include "nvfp4/quantize_rows.h"

namespace dutyfree::nvfp4 {
namespace {

// Vectors of 16 bytes, which SSE2 and NEON both have; wider ones are taken apart by the compiler, element by element.
using Floats4 = float __attribute__((vector_size(16)));
using Ints4 = std::int32_t __attribute__((vector_size(16)));
using Shorts8 = std::int16_t __attribute__((vector_size(16)));
using Bytes16 = std::int8_t __attribute__((vector_size(16)));

template <typename To, typename From>
[[gnu::always_inline]] inline To as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
template <typename To>
[[gnu::always_inline]] inline To load(const void* from) {
  To to;
  __builtin_memcpy(&to, from, sizeof to);
  return to;
}

struct Portable {
  static constexpr int kRows = 4;
  static constexpr int kPanels = 1;
  struct Floats {
    Floats4 of[4];
  };
  struct Codes {
    Shorts8 of[kBlock][2];  // without the offset: there is no instruction here that needs it
  };

  static Floats zero() { return {}; }
  static void store(float* out, const Floats& values) { __builtin_memcpy(out, &values, sizeof values); }

  // e2m1 codes, one a byte, doubled. A comparison that holds is -1.
  static Bytes16 doubled(Bytes16 codes) {
    const Bytes16 magnitude = codes & 7;
    const Bytes16 value = magnitude - (magnitude > 4) - (magnitude > 5) - 3 * (magnitude > 6);
    const Bytes16 negative = codes > 7;
    return (value ^ negative) - negative;
  }

  static Codes codes(const std::uint8_t* packed) {
    Codes codes;
#pragma GCC unroll 4
    for (int eight = 0; eight < 4; ++eight) {
      const int half = eight / 2;     // of the block
      const int columns = eight % 2;  // of the panel: the first or the last eight
      const auto first = load<Bytes16>(packed + half * 64 + columns * 32);
      const auto second = load<Bytes16>(packed + half * 64 + columns * 32 + 16);
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        const auto left = as<Ints4>(doubled((first >> (4 * part)) & 15));
        const auto right = as<Ints4>(doubled((second >> (4 * part)) & 15));
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          codes.of[half * 8 + part * 4 + i][columns] =
              __builtin_shufflevector(as<Shorts8>((left << (24 - 8 * i)) >> 24),
                                      as<Shorts8>((right << (24 - 8 * i)) >> 24), 0, 2, 4, 6, 8, 10, 12, 14);
        }
      }
    }
    return codes;
  }

  static Floats scales(const std::uint16_t* packed) {
    Floats scales;
    for (int lane = 0; lane < kPanel; ++lane) {
      scales.of[lane / 4][lane % 4] = bf16_value(packed[lane]);
    }
    return scales;
  }

  static void add(Floats& sums,
                  const Codes& weight,
                  const std::int8_t* activations,
                  std::int32_t /*start*/,
                  const Floats& scale,
                  float activation_scale) {
    Shorts8 products[2] = {};
#pragma GCC unroll 16
    for (int i = 0; i < kBlock; ++i) {
      const std::int16_t activation = activations[i];
      products[0] += weight.of[i][0] * activation;
      products[1] += weight.of[i][1] * activation;
    }
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter) {
      // Four of the eight, doubled in width by shifting them down from the upper half.
      const Shorts8 eight = products[quarter / 2];
      const Shorts8 wide = quarter % 2 == 0 ? __builtin_shufflevector(eight, eight, 0, 0, 1, 1, 2, 2, 3, 3)
                                            : __builtin_shufflevector(eight, eight, 4, 4, 5, 5, 6, 6, 7, 7);
      sums.of[quarter] +=
          __builtin_convertvector(as<Ints4>(wide) >> 16, Floats4) * (scale.of[quarter] * activation_scale);
    }
  }
};

bool supported() { return true; }

}  // namespace

const Kernels portable_kernels = {
    "portable",           &supported, &quantize_rows, &int8_activation_bytes, &pack_int8_activations,
    &int8_gemm<Portable>, &no_scratch};

}  // namespace dutyfree::nvfp4
