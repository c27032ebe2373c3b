// The AVX512_BF16 part of tile_product.h. Highway 1.0.3 lacks vdpbf16ps, which is twice as fast as
// f32. So this file, and only this one, uses intrinsics, guarded by has_bf16_pairs().
#pragma once

#include "shoal/kernels/cpu/tile_product.h"

namespace shoal::kernels {

inline constexpr std::int64_t kBF16PanelWidth = 32;
void multiply_bf16_pairs(const TileProduct::Call& call);

// Packs a whole panel of pack_transposed(): kBF16PanelWidth rows of `words` words, a multiple of
// 16.
void transpose_bf16_panel(const void* source, std::int64_t row_bytes, std::int64_t words,
                          std::uint32_t* panel);
// Packs one line of a whole panel of pack(): kBF16PanelWidth elements of two rows.
void interleave_bf16_rows(const void* low, const void* high, std::uint32_t* line);

}  // namespace shoal::kernels
