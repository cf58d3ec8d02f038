#include "nvfp4/format.h"
#include "nvfp4/kernels.h"

namespace dutyfree::nvfp4 {

// For each panel of 16 rows and each block of 16 along K there are 128 bytes: for q of 0 and 1, for each row, four
// bytes that hold the codes of elements 8q to 8q + 3 in their low halves and of 8q + 4 to 8q + 7 in their high halves.
// So one vector of 64 bytes, masked and shifted, is two vectors of four elements a row, as products of bytes want them.
void pack_weight(const std::uint8_t* values,
                 const std::uint8_t* scale_factors,
                 std::int64_t rows,
                 std::uint8_t* codes,
                 std::uint16_t* scales,
                 std::int64_t blocks,
                 std::int64_t first,
                 std::int64_t last) {
  for (std::int64_t panel = first; panel < last; ++panel) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      std::uint8_t* to = codes + (panel * blocks + block) * kPanelBlock;
      std::uint16_t* scale_to = scales + (panel * blocks + block) * kPanel;
      for (int lane = 0; lane < kPanel; ++lane) {
        const std::int64_t row = panel * kPanel + lane;
        std::uint8_t block_codes[kBlock] = {};
        std::uint16_t scale = 0;
        if (row < rows) {
          const std::uint8_t* from = values + (row * blocks + block) * (kBlock / 2);
          for (int i = 0; i < kBlock / 2; ++i) {
            const std::uint8_t pair = from[i];
            const std::ptrdiff_t at = std::ptrdiff_t{2} * i;
            block_codes[at] = pair & 15U;
            block_codes[at + 1] = pair >> 4U;
          }
          scale =
              static_cast<std::uint16_t>(bits_of(e4m3_value(scale_factors[swizzled_offset(row, block, blocks)])) >> 16);
        }
        for (int half = 0; half < 2; ++half) {
          for (int i = 0; i < 4; ++i) {
            const unsigned low = block_codes[half * 8 + i];
            const unsigned high = block_codes[half * 8 + 4 + i];
            to[half * 64 + lane * 4 + i] = static_cast<std::uint8_t>(low | high << 4);
          }
        }
        scale_to[lane] = scale;
      }
    }
  }
}

void decode_to_bf16(const std::uint8_t* values,
                    const std::uint8_t* scale_factors,
                    std::uint16_t* out,
                    std::int64_t origin,
                    std::int64_t blocks,
                    std::int64_t first,
                    std::int64_t last) {
  for (std::int64_t row = first; row < last; ++row) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      const float scale = e4m3_value(scale_factors[swizzled_offset(row, block, blocks)]);
      const std::int64_t at = (row * blocks + block) * (kBlock / 2);
      std::uint16_t* to = out + ((row - origin) * blocks + block) * kBlock;
      for (std::int64_t i = 0; i < kBlock / 2; ++i) {
        const std::uint8_t pair = values[at + i];
        to[2 * i] = static_cast<std::uint16_t>(bits_of(e2m1_value(pair & 15U) * scale) >> 16);
        to[2 * i + 1] = static_cast<std::uint16_t>(bits_of(e2m1_value(pair >> 4U) * scale) >> 16);
      }
    }
  }
}

}  // namespace dutyfree::nvfp4
