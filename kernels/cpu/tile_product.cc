#include "shoal/kernels/cpu/tile_product.h"

#include <algorithm>
#include <cstring>

#include "shoal/kernels/cpu/tile_product_bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/tile_product.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shoal/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3
inline constexpr int kTileRows = 8;
#else
inline constexpr int kTileRows = 4;  // 16 registers
#endif

template <int MR>
void Block(const TileProduct::Call& call, const char* a, const float* b, float* c) {
  const std::int64_t lanes = FloatLanes();
  FloatVec sum0[MR], sum1[MR];
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
    sum0[r] = call.accumulate ? LoadFloats(c + r * call.c_stride) : hn::Zero(kFloat);
    sum1[r] = call.accumulate ? LoadFloats(c + r * call.c_stride + lanes) : hn::Zero(kFloat);
  }
  for (std::int64_t k = 0; k < call.k_words; ++k) {
    const FloatVec b0 = LoadFloats(b + k * 2 * lanes), b1 = LoadFloats(b + (k * 2 + 1) * lanes);
    const char* word = a + k * call.a.word_bytes;
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      float value;
      std::memcpy(&value, word + r * call.a.row_bytes, sizeof value);
      const FloatVec all = hn::Set(kFloat, value);
      sum0[r] = hn::MulAdd(all, b0, sum0[r]);
      sum1[r] = hn::MulAdd(all, b1, sum1[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
    StoreFloats(sum0[r], c + r * call.c_stride);
    StoreFloats(sum1[r], c + r * call.c_stride + lanes);
  }
}

template <int MR>
void LastBlock(std::int64_t rows, const TileProduct::Call& call, const char* a, const float* b,
               float* c) {
  if constexpr (MR > 0) {
    if (rows == MR) return Block<MR>(call, a, b, c);
    LastBlock<MR - 1>(rows, call, a, b, c);
  }
}

void MultiplyFloats(const TileProduct::Call& call) {
  const std::int64_t width = 2 * FloatLanes();
  const float* packed = static_cast<const float*>(call.packed) + call.first_word * width;
  for (std::int64_t n = 0; n < call.n; n += width, packed += call.panel_words * width)
    for (std::int64_t m = 0; m < call.m; m += kTileRows)
      LastBlock<kTileRows>(HWY_MIN(call.m - m, kTileRows), call,
                           static_cast<const char*>(call.a.data) + m * call.a.row_bytes, packed,
                           call.c + m * call.c_stride + n);
}

std::int64_t PanelWidth() { return 2 * FloatLanes(); }

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {

HWY_EXPORT(MultiplyFloats);
HWY_EXPORT(PanelWidth);

TileProduct::TileProduct(TileWord word)
    : word_(word),
      width_(word == TileWord::f32 ? HWY_DYNAMIC_DISPATCH(PanelWidth)() : kBF16PanelWidth) {}

void TileProduct::multiply(const Call& call) const {
  if (word_ == TileWord::f32)
    HWY_DYNAMIC_DISPATCH(MultiplyFloats)(call);
  else
    multiply_bf16_pairs(call);
}

void TileProduct::pack_transposed(const void* source, std::int64_t rows, std::int64_t columns,
                                  std::int64_t stride, void* packed) const {
  const std::int64_t element = word_ == TileWord::f32 ? 4 : 2, depth = words(columns);
  auto* to = static_cast<std::uint32_t*>(packed);
  for (std::int64_t panel = 0; panel < rows; panel += width_, to += depth * width_) {
    const std::int64_t have = std::min(width_, rows - panel);
    const char* from = static_cast<const char*>(source) + panel * stride * element;
    if (word_ == TileWord::bf16_pair && have == width_ && columns % 32 == 0) {
      transpose_bf16_panel(from, stride * element, depth, to);
      continue;
    }
    for (std::int64_t k = 0; k < depth; ++k) {
      std::uint32_t* line = to + k * width_;
      // The last word of a row with an odd count holds half a pair.
      const std::size_t bytes = element == 2 && 2 * k + 1 == columns ? 2 : 4;
      if (bytes == 4)
        for (std::int64_t j = 0; j < have; ++j)
          std::memcpy(line + j, from + j * stride * element + k * 4, 4);
      else
        for (std::int64_t j = 0; j < have; ++j) {
          line[j] = 0;
          std::memcpy(line + j, from + j * stride * element + k * 4, 2);
        }
      std::fill(line + have, line + width_, 0u);
    }
  }
}

void TileProduct::pack(const void* source, std::int64_t rows, std::int64_t columns,
                       std::int64_t stride, void* packed) const {
  auto* to = static_cast<std::uint32_t*>(packed);
  const std::int64_t depth = words(rows);
  for (std::int64_t panel = 0; panel < columns; panel += width_, to += depth * width_) {
    const std::int64_t have = std::min(width_, columns - panel);
    for (std::int64_t k = 0; k < depth; ++k) {
      std::uint32_t* line = to + k * width_;
      if (word_ == TileWord::f32) {
        std::memcpy(line, static_cast<const float*>(source) + k * stride + panel,
                    static_cast<std::size_t>(have) * sizeof(float));
      } else {
        const auto* low = static_cast<const std::uint16_t*>(source) + 2 * k * stride + panel;
        const std::uint16_t* high = low + stride;
        if (2 * k + 1 < rows && have == width_)
          interleave_bf16_rows(low, high, line);
        else if (2 * k + 1 < rows)
          for (std::int64_t j = 0; j < have; ++j)
            line[j] = static_cast<std::uint32_t>(low[j]) | static_cast<std::uint32_t>(high[j])
                                                               << 16;
        else
          for (std::int64_t j = 0; j < have; ++j) line[j] = low[j];
      }
      std::fill(line + have, line + width_, 0u);
    }
  }
}

}  // namespace shoal::kernels
#endif
