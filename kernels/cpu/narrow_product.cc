#include "shoal/kernels/cpu/narrow_product.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/narrow_product.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shoal/kernels/cpu/simd-inl.h"
#include "shoal/runtime/base/parallel_for.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

// 12 sums, two vectors of b and one of a fill AVX2's 16 registers.
constexpr int kNarrowRows = 6;
// Slice of k. A packed panel of 16 columns then takes 16 KiB, half of L1, and the matching rows of
// a take up to 263 KiB of L2.
constexpr std::int64_t kNarrowDepth = 256;
constexpr std::int64_t kMaxWidth = 32;  // widest panel: two vectors

struct NarrowPanel {
  const float* packed;  // [depth, width]
  std::int64_t depth;
  bool load;          // add to the contents of c
  const float* bias;  // of the panel's first column; null: none
};

template <int MR>
void NarrowTile(const NarrowPanel& panel, const float* a, std::int64_t lda, float* c,
                std::int64_t ldc) {
  const std::int64_t lanes = FloatLanes();
  FloatVec sum0[MR], sum1[MR];
  FloatVec start0 = hn::Zero(kFloat), start1 = start0;
  if (panel.bias) {
    start0 = LoadFloats(panel.bias);
    start1 = LoadFloats(panel.bias + lanes);
  }
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
    sum0[r] = panel.load ? LoadFloats(c + r * ldc) : start0;
    sum1[r] = panel.load ? LoadFloats(c + r * ldc + lanes) : start1;
  }
  const float* b = panel.packed;
  for (std::int64_t k = 0; k < panel.depth; ++k, b += 2 * lanes) {
    const FloatVec b0 = hn::Load(kFloat, b), b1 = hn::Load(kFloat, b + lanes);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const FloatVec all = hn::Set(kFloat, a[r * lda + k]);
      sum0[r] = hn::MulAdd(all, b0, sum0[r]);
      sum1[r] = hn::MulAdd(all, b1, sum1[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
    StoreFloats(sum0[r], c + r * ldc);
    StoreFloats(sum1[r], c + r * ldc + lanes);
  }
}

template <int MR>
void LastNarrowTile(std::int64_t rows, const NarrowPanel& panel, const float* a, std::int64_t lda,
                    float* c, std::int64_t ldc) {
  if constexpr (MR > 0) {
    if (rows == MR) return NarrowTile<MR>(panel, a, lda, c, ldc);
    LastNarrowTile<MR - 1>(rows, panel, a, lda, c, ldc);
  }
}

// packed[k, j] = b[k, j] for the first `have` columns, 0 beyond.
void PackColumns(const float* b, std::int64_t ldb, std::int64_t depth, std::int64_t have,
                 std::int64_t width, float* packed) {
  if (have == width) {
    const std::int64_t lanes = FloatLanes();
    for (std::int64_t k = 0; k < depth; ++k, b += ldb, packed += width) {
      hn::Store(LoadFloats(b), kFloat, packed);
      hn::Store(LoadFloats(b + lanes), kFloat, packed + lanes);
    }
    return;
  }
  for (std::int64_t k = 0; k < depth; ++k, b += ldb, packed += width) {
    std::copy_n(b, have, packed);
    std::fill(packed + have, packed + width, 0.0f);
  }
}

// One panel's part of b: its address, depth and number of columns.
struct NarrowPart {
  const float* b = nullptr;
  std::int64_t depth = 0, have = 0;
};

// Computes the columns of panels [first, last). The next part of b is packed between the tiles of
// the current one. It is prefetched slightly earlier, since its rows are a page apart and hardware
// prefetchers do not cross pages.
void MultiplyNarrow(const GemmProblem& p, const float* a, const float* b, const float* bias,
                    float* c, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kAhead = 24;  // rows of b
  const std::int64_t width = 2 * FloatLanes();
  const std::int64_t lda = p.lda ? p.lda : p.k, ldb = p.ldb ? p.ldb : p.n,
                     ldc = p.ldc ? p.ldc : p.n;
  const std::int64_t tiles = (p.m + kNarrowRows - 1) / kNarrowRows;
  HWY_ALIGN float packed[2][kNarrowDepth * kMaxWidth];
  HWY_ALIGN float edge[kNarrowRows * kMaxWidth];
  HWY_ALIGN float edge_bias[kMaxWidth];
  const auto part = [&](std::int64_t k, std::int64_t panel) {
    return NarrowPart{b + k * ldb + panel * width, std::min(kNarrowDepth, p.k - k),
                      std::min(width, p.n - panel * width)};
  };
  // Packs rows [begin, end) of a part.
  const auto pack = [&](const NarrowPart& from, std::int64_t begin, std::int64_t end, float* to) {
    for (std::int64_t k = begin + kAhead; k < std::min(end + kAhead, from.depth); ++k)
      __builtin_prefetch(from.b + k * ldb, 0, 3);
    PackColumns(from.b + begin * ldb, ldb, end - begin, from.have, width, to + begin * width);
  };
  int now = 0;
  NarrowPart here = part(0, first);
  pack(here, 0, here.depth, packed[now]);
  for (std::int64_t k = 0; k < p.k; k += kNarrowDepth) {
    for (std::int64_t panel = first; panel < last; ++panel, now = 1 - now) {
      NarrowPart next;
      if (panel + 1 < last)
        next = part(k, panel + 1);
      else if (k + kNarrowDepth < p.k)
        next = part(k + kNarrowDepth, first);
      const std::int64_t column = panel * width;
      NarrowPanel with{packed[now], here.depth, p.accumulate || k > 0,
                       k == 0 && bias ? bias + column : nullptr};
      if (with.bias && here.have < width) {
        std::fill(std::copy_n(with.bias, here.have, edge_bias), edge_bias + width, 0.0f);
        with.bias = edge_bias;
      }
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        pack(next, next.depth * tile / tiles, next.depth * (tile + 1) / tiles, packed[1 - now]);
        const std::int64_t row = tile * kNarrowRows,
                           rows = std::min<std::int64_t>(p.m - row, kNarrowRows);
        float* to = c + row * ldc + column;
        if (here.have == width) {
          LastNarrowTile<kNarrowRows>(rows, with, a + row * lda + k, lda, to, ldc);
          continue;
        }
        for (std::int64_t r = 0; r < rows && with.load; ++r)
          std::copy_n(to + r * ldc, here.have, edge + r * width);
        LastNarrowTile<kNarrowRows>(rows, with, a + row * lda + k, lda, edge, width);
        for (std::int64_t r = 0; r < rows; ++r)
          std::copy_n(edge + r * width, here.have, to + r * ldc);
      }
      here = next;
    }
  }
}

bool LacksAvx512() { return HWY_TARGET > HWY_AVX3; }

void MultiplyAll(const GemmProblem& p, int threads, const float* a, const float* b,
                 const float* bias, float* c) {
  const std::int64_t width = 2 * FloatLanes();
  parallel_for(threads, (p.n + width - 1) / width, 4, [&](std::int64_t first, std::int64_t last) {
    MultiplyNarrow(p, a, b, bias, c, first, last);
  });
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {

HWY_EXPORT(LacksAvx512);
HWY_EXPORT(MultiplyAll);

bool prefers_narrow_product(const GemmProblem& p) {
  constexpr std::int64_t kFewest = 24, kMost = 263, kSmall = 64, kBadStride = 1024;
  const std::int64_t ldb = p.ldb ? p.ldb : p.n;
  return ldb % kBadStride == 0 && p.groups == 1 && p.input == DType::f32 &&
         p.output == DType::f32 && !p.transpose_a && !p.transpose_b &&
         (!p.has_bias || (p.bias == DType::f32 && !p.accumulate)) &&
         p.activation == Activation::none && p.m >= kFewest && p.m <= kMost && p.n >= kSmall &&
         p.k >= kSmall && HWY_DYNAMIC_DISPATCH(LacksAvx512)();
}

void narrow_product(const GemmProblem& p, int threads, const float* a, const float* b,
                    const float* bias, float* c) {
  HWY_DYNAMIC_DISPATCH(MultiplyAll)(p, threads, a, b, bias, c);
}

}  // namespace shoal::kernels
#endif
