// The AVX512_BF16 half of tile_product.h. Highway 1.0.3 has no vdpbf16ps, which doubles the rate
// of f32, so this one file uses intrinsics, behind has_bf16_pairs().
#pragma once

#include "shoal/kernels/cpu/tile_product.h"

namespace shoal::kernels {

inline constexpr std::int64_t kBF16PanelWidth = 32;
void multiply_bf16_pairs(const TileProduct::Call& call);

}  // namespace shoal::kernels
