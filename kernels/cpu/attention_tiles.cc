#include "shoal/kernels/cpu/attention_tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shoal/kernels/attention_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/attention_tiles.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shoal/kernels/cpu/math-inl.h"
#include "shoal/kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

// What one row of a tile needs of the random generator; without dropout every key is kept.
class RowDropout {
 public:
  explicit RowDropout(const ScoreTile& tile)
      : tile_(tile),
        rows_(RandomKey(tile.shape->site)),
        sample_(tile.shape->site.sample_first +
                static_cast<std::uint32_t>(tile.batch) * tile.shape->site.sample_stride),
        threshold_(dropout_threshold(tile.shape->dropout)),
        scale_(1.0f / (1.0f - tile.shape->dropout)) {}

  bool on() const { return tile_.shape->dropout > 0; }
  // Prepares row r of the tile, `count` keys.
  void row(std::int64_t r, std::int64_t count) {
    const std::uint64_t first = dropout_row(*tile_.shape, tile_.head, tile_.query + r) +
                                static_cast<std::uint64_t>(tile_.key);
    bits_ = rows_.row(sample_, first, static_cast<std::size_t>(count), tile_.random);
  }
  HWY_INLINE FloatVec apply(FloatVec x, std::int64_t column) const {
    return drop(x, bits_ + column, threshold_, hn::Set(kFloat, scale_));
  }

 private:
  const ScoreTile& tile_;
  RandomRows rows_;
  std::uint32_t sample_, threshold_;
  float scale_;
  const std::uint32_t* bits_ = nullptr;
};

// Keys of the tile that row r may see by causality.
std::int64_t SeenColumns(const ScoreTile& tile, std::int64_t r) {
  return std::clamp<std::int64_t>(visible_keys(*tile.shape, tile.query + r) - tile.key, 0,
                                  tile.columns);
}

// scale · scores + mask of the vector at column j; lanes at or beyond `seen` are -inf.
HWY_INLINE FloatVec MaskedScores(const ScoreTile& tile, const float* scores, std::int64_t j,
                                 std::int64_t seen, FloatVec scale) {
  FloatVec s = hn::Mul(LoadFloats(scores + j), scale);
  if (tile.key_bias) s = hn::Add(s, LoadFloats(tile.key_bias + j));
  if (j + FloatLanes() > seen)
    s = hn::IfThenElse(hn::FirstN(kFloat, static_cast<std::size_t>(seen - j)), s,
                       hn::Set(kFloat, -std::numeric_limits<float>::infinity()));
  return s;
}

template <typename T>
void SoftmaxTile(const ScoreTile& tile, T* p, float* largest, float* sum, float* out,
                 std::int64_t out_columns, std::int64_t out_stride) {
  const std::int64_t lanes = FloatLanes();
  const FloatVec scale = hn::Set(kFloat, tile.shape->scale);
  const FloatVec lowest = hn::Set(kFloat, -std::numeric_limits<float>::infinity());
  RowDropout dropout(tile);
  const std::int64_t even = (tile.columns + 1) / 2 * 2;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* scores = tile.scores + r * tile.stride;
    T* to = p + r * tile.stride;
    const std::int64_t seen = SeenColumns(tile, r);
    FloatVec m = lowest;
    for (std::int64_t j = 0; j < seen; j += lanes)
      m = hn::Max(m, MaskedScores(tile, scores, j, seen, scale));
    const float before = largest[r];
    float now = std::max(before, hn::GetLane(hn::MaxOfLanes(kFloat, m)));
    if (now == -std::numeric_limits<float>::infinity()) {
      // Sees nothing; or scores of NaN, which a maximum may lose.
      if (std::none_of(scores, scores + seen, [](float s) { return std::isnan(s); })) {
        std::fill(to, to + even, T());
        continue;
      }
      now = std::numeric_limits<float>::quiet_NaN();
    }
    if (now != before && sum[r] != 0) {
      const FloatVec shrink = exp(hn::Set(kFloat, before - now));
      sum[r] *= hn::GetLane(shrink);
      for (std::int64_t c = 0; c < out_columns; c += lanes) {
        float* o = out + r * out_stride + c;
        StoreFloats(hn::Mul(LoadFloats(o), shrink), o);
      }
    }
    largest[r] = now;
    if (dropout.on()) dropout.row(r, seen);
    const FloatVec shift = hn::Set(kFloat, now);
    FloatVec total = hn::Zero(kFloat);
    std::int64_t j = 0;
    for (; j < seen; j += lanes) {
      FloatVec e = exp(hn::Sub(MaskedScores(tile, scores, j, seen, scale), shift));
      total = hn::Add(total, e);
      if (dropout.on()) e = dropout.apply(e, j);
      StoreFloats(e, to + j);
    }
    if (j < even) std::fill(to + j, to + even, T());
    sum[r] += hn::GetLane(hn::SumOfLanes(kFloat, total));
  }
}
void SoftmaxTileF32(const ScoreTile& tile, void* p, float* largest, float* sum, float* out,
                    std::int64_t out_columns, std::int64_t out_stride) {
  SoftmaxTile(tile, static_cast<float*>(p), largest, sum, out, out_columns, out_stride);
}
void SoftmaxTileBF16(const ScoreTile& tile, void* p, float* largest, float* sum, float* out,
                     std::int64_t out_columns, std::int64_t out_stride) {
  SoftmaxTile(tile, static_cast<bfloat16*>(p), largest, sum, out, out_columns, out_stride);
}

struct Gradients {
  FloatVec p, ds;
};

// The gradients of one row's vector at column j. Lanes beyond `seen` are 0.
HWY_INLINE Gradients GradientsAt(const ScoreTile& tile, const ScoreGradients& g,
                                 const RowDropout& dropout, std::int64_t r, std::int64_t j,
                                 std::int64_t seen) {
  if (j >= seen) return {hn::Zero(kFloat), hn::Zero(kFloat)};
  const FloatVec scale = hn::Set(kFloat, tile.shape->scale);
  const FloatVec s = MaskedScores(tile, tile.scores + r * tile.stride, j, seen, scale);
  const FloatVec p = exp(hn::Sub(s, hn::Set(kFloat, g.log_sum_exp[r])));
  FloatVec dp = LoadFloats(g.dp + r * tile.stride + j), kept = p;
  if (dropout.on()) {
    dp = dropout.apply(dp, j);
    kept = dropout.apply(p, j);
  }
  const FloatVec ds = hn::Mul(hn::Mul(p, scale), hn::Sub(dp, hn::Set(kFloat, g.delta[r])));
  // Rows of dp beyond the last key are 0, but an infinite product elsewhere must not leak: p = 0
  // means ds = 0.
  return {kept, hn::IfThenElseZero(hn::Gt(p, hn::Zero(kFloat)), ds)};
}

// A query that saw nothing has log_sum_exp = -inf.
std::int64_t SeenInBackward(const ScoreTile& tile, const ScoreGradients& g, std::int64_t r) {
  if (r >= tile.rows || g.log_sum_exp[r] == -std::numeric_limits<float>::infinity()) return 0;
  return SeenColumns(tile, r);
}

void ScoreGradientsF32(const ScoreTile& tile, const ScoreGradients& g) {
  const std::int64_t lanes = FloatLanes();
  RowDropout dropout(tile);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t seen = SeenInBackward(tile, g, r);
    if (dropout.on() && seen > 0) dropout.row(r, seen);
    for (std::int64_t j = 0; j < tile.columns; j += lanes) {
      const Gradients at = GradientsAt(tile, g, dropout, r, j, seen);
      StoreFloats(at.p, tile.scores + r * tile.stride + j);
      StoreFloats(at.ds, g.dp + r * tile.stride + j);
    }
  }
}

// Two queries at a time: a pair is the first's bf16 in the low half and the second's in the high.
void ScoreGradientsBF16(const ScoreTile& tile, const ScoreGradients& g) {
  const std::int64_t lanes = FloatLanes();
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<std::uint16_t, FloatTag> dh;
  RowDropout low_dropout(tile);
  ScoreTile high_tile = tile;
  const std::size_t room = random_room(static_cast<std::size_t>(tile.columns));
  if (tile.random) high_tile.random = tile.random + room;
  RowDropout high_dropout(high_tile);
  for (std::int64_t r = 0; r < tile.rows; r += 2) {
    const std::int64_t low_seen = SeenInBackward(tile, g, r),
                       high_seen = SeenInBackward(tile, g, r + 1);
    if (low_dropout.on() && low_seen > 0) low_dropout.row(r, low_seen);
    if (high_dropout.on() && high_seen > 0) high_dropout.row(r + 1, high_seen);
    for (std::int64_t j = 0; j < tile.columns; j += lanes) {
      const Gradients low = GradientsAt(tile, g, low_dropout, r, j, low_seen);
      const Gradients high = GradientsAt(tile, g, high_dropout, r + 1, j, high_seen);
      const auto ds_low = BFloat16Bits(low.ds), ds_high = BFloat16Bits(high.ds);
      const std::int64_t at = r / 2 * tile.stride + j;
      hn::StoreU(hn::Or(BFloat16Bits(low.p), hn::ShiftLeft<16>(BFloat16Bits(high.p))), du,
                 g.p_pairs + at);
      hn::StoreU(hn::Or(ds_low, hn::ShiftLeft<16>(ds_high)), du, g.ds_pairs + at);
      const auto store_row = [&](auto bits, std::int64_t row) {
        hn::StoreU(hn::DemoteTo(dh, hn::BitCast(IntTag(), bits)), dh,
                   g.ds_rows + row * tile.stride + j);
      };
      store_row(ds_low, r);
      if (r + 1 < tile.rows) store_row(ds_high, r + 1);
    }
  }
}

template <typename T>
void WidenRows(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
               float* to) {
  const std::int64_t lanes = FloatLanes();
  for (std::int64_t r = 0; r < rows; ++r, from += stride, to += columns) {
    std::int64_t j = 0;
    for (; j + lanes <= columns; j += lanes) StoreFloats(LoadFloats(from + j), to + j);
    if (j < columns) StoreSomeFloats(LoadSomeFloats(from + j, columns - j), to + j, columns - j);
  }
}
void WidenRowsBF16(const void* from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                   float* to) {
  WidenRows(static_cast<const bfloat16*>(from), stride, rows, columns, to);
}
void WidenRowsF16(const void* from, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                  float* to) {
  WidenRows(static_cast<const float16*>(from), stride, rows, columns, to);
}

template <typename T>
void NarrowRow(const float* from, float factor, std::int64_t columns, T* to) {
  const std::int64_t lanes = FloatLanes();
  const FloatVec f = hn::Set(kFloat, factor);
  std::int64_t j = 0;
  for (; j + lanes <= columns; j += lanes) StoreFloats(hn::Mul(LoadFloats(from + j), f), to + j);
  if (j < columns)
    StoreSomeFloats(hn::Mul(LoadSomeFloats(from + j, columns - j), f), to + j, columns - j);
}
void NarrowRowTo(DType dtype, const float* from, float factor, std::int64_t columns, void* to) {
  if (dtype == DType::f32) return NarrowRow(from, factor, columns, static_cast<float*>(to));
  if (dtype == DType::bf16) return NarrowRow(from, factor, columns, static_cast<bfloat16*>(to));
  NarrowRow(from, factor, columns, static_cast<float16*>(to));
}

template <typename T>
float Dot(const T* a, const T* b, std::int64_t count) {
  const std::int64_t lanes = FloatLanes();
  FloatVec sum = hn::Zero(kFloat);
  std::int64_t j = 0;
  for (; j + lanes <= count; j += lanes)
    sum = hn::MulAdd(LoadFloats(a + j), LoadFloats(b + j), sum);
  if (j < count)
    sum = hn::MulAdd(LoadSomeFloats(a + j, count - j), LoadSomeFloats(b + j, count - j), sum);
  return hn::GetLane(hn::SumOfLanes(kFloat, sum));
}
float DotOf(DType dtype, const void* a, const void* b, std::int64_t count) {
  if (dtype == DType::f32)
    return Dot(static_cast<const float*>(a), static_cast<const float*>(b), count);
  if (dtype == DType::bf16)
    return Dot(static_cast<const bfloat16*>(a), static_cast<const bfloat16*>(b), count);
  return Dot(static_cast<const float16*>(a), static_cast<const float16*>(b), count);
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {

HWY_EXPORT(SoftmaxTileF32);
HWY_EXPORT(SoftmaxTileBF16);
HWY_EXPORT(ScoreGradientsF32);
HWY_EXPORT(ScoreGradientsBF16);
HWY_EXPORT(WidenRowsBF16);
HWY_EXPORT(WidenRowsF16);
HWY_EXPORT(NarrowRowTo);
HWY_EXPORT(DotOf);

namespace {
const char* at(const void* base, DType dtype, std::int64_t elements) {
  return static_cast<const char*>(base) + elements * static_cast<std::int64_t>(size_of(dtype));
}
}  // namespace

void softmax_tile(const ScoreTile& tile, void* p, float* largest, float* sum, float* out,
                  std::int64_t out_columns, std::int64_t out_stride) {
  if (tile.word == TileWord::f32)
    HWY_DYNAMIC_DISPATCH(SoftmaxTileF32)(tile, p, largest, sum, out, out_columns, out_stride);
  else
    HWY_DYNAMIC_DISPATCH(SoftmaxTileBF16)(tile, p, largest, sum, out, out_columns, out_stride);
}

void score_gradients(const ScoreTile& tile, const ScoreGradients& gradients) {
  if (tile.word == TileWord::f32)
    HWY_DYNAMIC_DISPATCH(ScoreGradientsF32)(tile, gradients);
  else
    HWY_DYNAMIC_DISPATCH(ScoreGradientsBF16)(tile, gradients);
}

void finish_rows(const AttentionShape& shape, const float* out, std::int64_t out_stride,
                 std::int64_t rows, const float* largest, const float* sum, void* to,
                 std::int64_t row_stride, float* log_sum_exp) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const bool saw = sum[r] > 0 || std::isnan(sum[r]);
    HWY_DYNAMIC_DISPATCH(NarrowRowTo)
    (shape.dtype, out + r * out_stride, saw ? 1.0f / sum[r] : 0.0f, shape.head_dim,
     const_cast<char*>(at(to, shape.dtype, r * row_stride)));
    if (log_sum_exp)
      log_sum_exp[r] =
          saw ? largest[r] + std::log(sum[r]) : -std::numeric_limits<float>::infinity();
  }
}

void row_dots(const AttentionShape& shape, const void* dout, std::int64_t dout_stride,
              const void* out, std::int64_t out_stride, std::int64_t rows, float* delta) {
  for (std::int64_t r = 0; r < rows; ++r)
    delta[r] = HWY_DYNAMIC_DISPATCH(DotOf)(shape.dtype, at(dout, shape.dtype, r * dout_stride),
                                           at(out, shape.dtype, r * out_stride), shape.head_dim);
}

void widen_rows(DType dtype, const void* from, std::int64_t stride, std::int64_t rows,
                std::int64_t columns, float* to) {
  if (dtype == DType::bf16)
    HWY_DYNAMIC_DISPATCH(WidenRowsBF16)(from, stride, rows, columns, to);
  else
    HWY_DYNAMIC_DISPATCH(WidenRowsF16)(from, stride, rows, columns, to);
}

void narrow_rows(DType dtype, const float* from, std::int64_t from_stride, std::int64_t rows,
                 std::int64_t columns, void* to, std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) HWY_DYNAMIC_DISPATCH(NarrowRowTo)
  (dtype, from + r * from_stride, 1.0f, columns, const_cast<char*>(at(to, dtype, r * stride)));
}

}  // namespace shoal::kernels
#endif
