// Compiled for whatever the build is for: plain loops over a panel's 16 columns, which the compiler makes vectors of.
#include "nvfp4/kernels.h"

#include "nvfp4/gemm_int8.h"
#include "nvfp4/quantize_rows.h"

namespace dutyfree::nvfp4 {
namespace {

struct Portable {
  static constexpr int kRows = 2;
  static constexpr int kPanels = 1;
  struct Floats {
    float of[kPanel];
  };
  struct Codes {
    std::int8_t of[kBlock][kPanel];  // without the offset: there is no instruction here that needs it
  };

  static Floats zero() { return {}; }
  static void store(float* out, const Floats& values) { std::copy_n(values.of, kPanel, out); }

  static Codes codes(const std::uint8_t* packed) {
    Codes codes;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) {
        for (int lane = 0; lane < kPanel; ++lane) {
          const std::uint8_t pair = packed[half * 64 + lane * 4 + i];
          codes.of[half * 8 + i][lane] = static_cast<std::int8_t>(kOffsetCodes[pair & 15U] - kOffset);
          codes.of[half * 8 + 4 + i][lane] = static_cast<std::int8_t>(kOffsetCodes[pair >> 4U] - kOffset);
        }
      }
    }
    return codes;
  }

  static Floats scales(const std::uint16_t* packed) {
    Floats scales;
    for (int lane = 0; lane < kPanel; ++lane) {
      scales.of[lane] = bf16_value(packed[lane]);
    }
    return scales;
  }

  static void add(Floats& sums,
                  const Codes& weight,
                  const std::int8_t* activations,
                  std::int32_t /*start*/,
                  const Floats& scale,
                  float activation_scale) {
    std::int16_t products[kPanel] = {};
    for (int i = 0; i < kBlock; ++i) {
      for (int lane = 0; lane < kPanel; ++lane) {
        products[lane] = static_cast<std::int16_t>(products[lane] + weight.of[i][lane] * activations[i]);
      }
    }
    for (int lane = 0; lane < kPanel; ++lane) {
      sums.of[lane] += static_cast<float>(products[lane]) * (scale.of[lane] * activation_scale);
    }
  }
};

bool supported() { return true; }

}  // namespace

const Kernels portable_kernels = {
    "portable",           &supported, &quantize_rows, &int8_activation_bytes, &pack_int8_activations,
    &int8_gemm<Portable>, &no_scratch};

}  // namespace dutyfree::nvfp4
