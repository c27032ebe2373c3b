#include "shoal/kernels/cpu/attention_tiles.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "shoal/kernels/attention_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/attention_tiles.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shoal/kernels/cpu/loops-inl.h"
#include "shoal/kernels/cpu/math-inl.h"
#include "shoal/kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

// Random bits for the rows of a tile.
class TileDropout {
 public:
  explicit TileDropout(const ScoreTile& tile)
      : rows_(RandomKey(tile.shape->site)),
        sample_(tile.shape->site.sample_first +
                static_cast<std::uint32_t>(tile.batch) * tile.shape->site.sample_stride),
        threshold_(dropout_threshold(tile.shape->dropout)) {}

  // Bits of `count` keys in row r of the tile; `room` is scratch space.
  HWY_INLINE const std::uint32_t* bits(const ScoreTile& tile, std::int64_t r, std::int64_t count,
                                       std::uint32_t* room) const {
    const std::uint64_t first =
        dropout_row(*tile.shape, tile.head, tile.query + r) + static_cast<std::uint64_t>(tile.key);
    return rows_.row(sample_, first, static_cast<std::size_t>(count), room);
  }
  std::uint32_t threshold() const { return threshold_; }

 private:
  RandomRows rows_;
  std::uint32_t sample_, threshold_;
};

// Stores one vector's mask into ScoreTile::kept. Highway may write eight bytes, hence the local
// buffer.
HWY_INLINE void StoreGone(hn::Mask<FloatTag> gone, std::uint8_t* to) {
  std::uint8_t bytes[8];
  (void)hn::StoreMaskBits(kFloat, gone, bytes);
  std::memcpy(to, bytes, static_cast<std::size_t>(FloatLanes()) / 8);
}
HWY_INLINE hn::Mask<FloatTag> LoadGone(const std::uint8_t* from) {
  std::uint8_t bytes[8] = {};
  std::memcpy(bytes, from, static_cast<std::size_t>(FloatLanes()) / 8);
  return hn::LoadMaskBits(kFloat, bytes);
}
std::int64_t KeptRowBytes(std::int64_t keys) {
  const std::int64_t lanes = FloatLanes();
  return lanes < 8 ? 0 : (keys + lanes - 1) / lanes * (lanes / 8);
}

// Number of the tile's keys that the causal mask or a window's end lets row r see.
std::int64_t SeenColumns(const ScoreTile& tile, std::int64_t r) {
  return std::clamp<std::int64_t>(visible_keys(*tile.shape, tile.query + r) - tile.key, 0,
                                  tile.columns);
}

// The bias of the keys of row r: key_bias, and -inf before the window. `room`: the row's scratch.
const float* BiasOfRow(const ScoreTile& tile, std::int64_t r, std::int64_t room) {
  const std::int64_t hidden = std::clamp<std::int64_t>(
      hidden_keys(*tile.shape, tile.query + r) - tile.key, 0, tile.columns);
  if (hidden == 0) return tile.key_bias;
  // Vectors read up to a whole one beyond the last column.
  const std::int64_t end = std::min(tile.columns + FloatLanes(), tile.stride);
  float* const bias = tile.row_bias + room * tile.stride;
  std::fill_n(bias, hidden, -std::numeric_limits<float>::infinity());
  if (tile.key_bias)
    std::copy(tile.key_bias + hidden, tile.key_bias + end, bias + hidden);
  else
    std::fill(bias + hidden, bias + end, 0.0f);
  return bias;
}

void CapScores(const ScoreTile& tile) {
  const float cap = tile.shape->soft_cap;
  const SoftCap op{hn::Set(kFloat, tile.shape->scale / cap), hn::Set(kFloat, cap)};
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* const scores = tile.scores + r * tile.stride;
    map(SeenColumns(tile, r), op, scores, static_cast<const float*>(scores));
  }
}

struct AddScaled {
  FloatVec factor;
  HWY_INLINE FloatVec operator()(FloatVec sum, FloatVec x) const {
    return hn::MulAdd(x, factor, sum);
  }
};
void AddRelativeBias(const ScoreTile& tile) {
  const AddScaled add{hn::Set(kFloat, 1 / tile.shape->scale)};
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* const scores = tile.scores + r * tile.stride;
    const float* const bias = tile.shape->relative_bias.as<float>() +
                              relative_row(*tile.shape, tile.head, tile.query + r) + tile.key;
    map(tile.columns, add, scores, static_cast<const float*>(scores), bias);
  }
}
template <typename T>
HWY_INLINE void SumRelativeBias(const ScoreTile& tile, const T* ds, float* sums) {
  const AddScaled add{hn::Set(kFloat, 1.0f)};
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* const to = sums + relative_row(*tile.shape, 0, tile.query + r) + tile.key;
    map(tile.columns, add, to, static_cast<const float*>(to), ds + r * tile.stride);
  }
}
void SumRelativeBiasOf(const ScoreTile& tile, const void* ds, float* sums) {
  if (tile.word == TileWord::f32)
    SumRelativeBias(tile, static_cast<const float*>(ds), sums);
  else
    SumRelativeBias(tile, static_cast<const bfloat16*>(ds), sums);
}

// With bf16 results, exponentials are powers of two by a short polynomial.
template <Precision precision>
struct Exponential {
  static constexpr float kUnit = precision == Precision::bf16 ? 1.44269504088896341f : 1.0f;
  static HWY_INLINE FloatVec of(FloatVec x) {
    if constexpr (precision == Precision::bf16)
      return short_exp2(x);
    else
      return exp(x);
  }
};

// Computes scale · scores - shift + mask for the vector at column j. If `partial`, lanes at or
// beyond `seen` are -inf.
template <bool partial>
HWY_INLINE FloatVec Exponents(const float* scores, const float* key_bias, std::int64_t j,
                              std::int64_t seen, FloatVec scale, FloatVec shift) {
  FloatVec x = hn::MulSub(LoadFloats(scores + j), scale, shift);
  if (key_bias) x = hn::Add(x, LoadFloats(key_bias + j));
  if constexpr (partial)
    x = hn::IfThenElse(hn::FirstN(kFloat, static_cast<std::size_t>(seen - j)), x,
                       hn::Set(kFloat, -std::numeric_limits<float>::infinity()));
  return x;
}

// Maximum of scale · scores + mask over the first `seen` columns.
HWY_INLINE float LargestScore(const float* scores, const float* key_bias, std::int64_t seen,
                              FloatVec scale) {
  const std::int64_t lanes = FloatLanes();
  const FloatVec zero = hn::Zero(kFloat);
  FloatVec m = hn::Set(kFloat, -std::numeric_limits<float>::infinity());
  std::int64_t j = 0;
  for (; j + lanes <= seen; j += lanes)
    m = hn::Max(m, Exponents<false>(scores, key_bias, j, seen, scale, zero));
  if (j < seen) m = hn::Max(m, Exponents<true>(scores, key_bias, j, seen, scale, zero));
  return hn::GetLane(hn::MaxOfLanes(kFloat, m));
}

HWY_INLINE void StoreProbabilities(FloatVec first, FloatVec second, float* to) {
  StoreTwo(first, second, to);
}
HWY_INLINE void StoreProbabilities(FloatVec first, FloatVec second, bfloat16* to) {
#if HWY_TARGET <= HWY_AVX3
  StoreTwoByInstruction(first, second, to);
#else
  StoreTwo(first, second, to);
#endif
}

template <typename T, bool drops>
HWY_INLINE void SoftmaxTile(const ScoreTile& tile, T* p, float* largest, float* sum, float* out,
                            std::int64_t out_columns, std::int64_t out_stride) {
  using E = Exponential<sizeof(T) == 2 ? Precision::bf16 : Precision::f32>;
  const std::int64_t lanes = FloatLanes();
  const FloatVec scale = hn::Set(kFloat, tile.scale);
  const FloatVec unit_scale = hn::Set(kFloat, tile.scale * E::kUnit);
  const TileDropout dropout(tile);
  const std::uint32_t threshold = dropout.threshold();
  const std::int64_t kept_row = KeptRowBytes(tile.shape->key_length);
  const std::int64_t even = (tile.columns + 1) / 2 * 2;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const float* scores = tile.scores + r * tile.stride;
    T* to = p + r * tile.stride;
    const std::int64_t seen = SeenColumns(tile, r);
    const float* const key_bias = BiasOfRow(tile, r, 0);
    const float before = largest[r];
    float now = std::max(before, LargestScore(scores, key_bias, seen, scale));
    if (now == -std::numeric_limits<float>::infinity()) {
      // The row sees no key, or its scores contain NaN, which a maximum may drop.
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
    const std::uint32_t* bits = nullptr;
    if constexpr (drops) bits = dropout.bits(tile, r, seen, tile.random);
    std::uint8_t* kept = tile.kept ? tile.kept + r * kept_row : nullptr;
    const FloatVec shift = hn::Set(kFloat, now * E::kUnit);
    const auto keep = [&](FloatVec e, std::int64_t j) HWY_ATTR {
      if constexpr (!drops) return e;
      const auto gone = dropped(bits + j, threshold);
      if (kept) StoreGone(gone, kept + j / 8);
      return hn::IfThenZeroElse(gone, e);
    };
    FloatVec total = hn::Zero(kFloat), total2 = total;
    std::int64_t j = 0;
    for (; j + 2 * lanes <= seen; j += 2 * lanes) {
      const FloatVec first = E::of(Exponents<false>(scores, key_bias, j, seen, unit_scale, shift));
      const FloatVec second =
          E::of(Exponents<false>(scores, key_bias, j + lanes, seen, unit_scale, shift));
      total = hn::Add(total, first);
      total2 = hn::Add(total2, second);
      StoreProbabilities(keep(first, j), keep(second, j + lanes), to + j);
    }
    for (; j < seen; j += lanes) {
      const FloatVec e = E::of(Exponents<true>(scores, key_bias, j, seen, unit_scale, shift));
      total = hn::Add(total, e);
      StoreFloats(keep(e, j), to + j);
    }
    if (j < even) std::fill(to + j, to + even, T());
    sum[r] += hn::GetLane(hn::SumOfLanes(kFloat, hn::Add(total, total2)));
  }
}
template <typename T>
HWY_INLINE void SoftmaxTileOf(const ScoreTile& tile, void* p, float* largest, float* sum,
                              float* out, std::int64_t out_columns, std::int64_t out_stride) {
  T* to = static_cast<T*>(p);
  if (tile.shape->dropout > 0)
    SoftmaxTile<T, true>(tile, to, largest, sum, out, out_columns, out_stride);
  else
    SoftmaxTile<T, false>(tile, to, largest, sum, out, out_columns, out_stride);
}
void SoftmaxTileF32(const ScoreTile& tile, void* p, float* largest, float* sum, float* out,
                    std::int64_t out_columns, std::int64_t out_stride) {
  SoftmaxTileOf<float>(tile, p, largest, sum, out, out_columns, out_stride);
}
void SoftmaxTileBF16(const ScoreTile& tile, void* p, float* largest, float* sum, float* out,
                     std::int64_t out_columns, std::int64_t out_stride) {
  SoftmaxTileOf<bfloat16>(tile, p, largest, sum, out, out_columns, out_stride);
}

struct Gradients {
  FloatVec p, ds;
};

// How backward obtains forward's dropout mask. `nothing`: there was no dropout. `drawn`: backward
// draws the bits again. `kept`: forward kept them.
enum class Drops { nothing, drawn, kept };

// Gradients of a tile's rows, one vector at a time. `capped`: the scores have a soft cap.
template <Precision precision, Drops drops, bool capped>
class TileGradients {
  using E = Exponential<precision>;

 public:
  struct Row {
    const float *scores, *dp, *key_bias;
    const std::uint32_t* bits;
    const std::uint8_t* kept;
    FloatVec shift, delta;
    std::int64_t seen;
  };

  TileGradients(const ScoreTile& tile, const ScoreGradients& g)
      : tile_(tile), g_(g), dropout_(tile), kept_row_(KeptRowBytes(tile.shape->key_length)) {}

  // A query that sees no key has log_sum_exp = -inf. Rows that are used together are one even and
  // one odd row.
  HWY_INLINE Row row(std::int64_t r, std::uint32_t* room) const {
    const bool sees =
        r < tile_.rows && g_.log_sum_exp[r] != -std::numeric_limits<float>::infinity();
    const std::int64_t seen = sees ? SeenColumns(tile_, r) : 0;
    const std::uint32_t* bits = nullptr;
    if constexpr (drops == Drops::drawn)
      if (seen > 0) bits = dropout_.bits(tile_, r, seen, room);
    return {tile_.scores + r * tile_.stride,
            g_.dp + r * tile_.stride,
            seen > 0 ? BiasOfRow(tile_, r, r % 2) : nullptr,
            bits,
            drops == Drops::kept ? tile_.kept + r * kept_row_ : nullptr,
            hn::Set(kFloat, sees ? g_.log_sum_exp[r] * E::kUnit : 0.0f),
            hn::Set(kFloat, sees ? g_.delta[r] : 0.0f),
            seen};
  }

  // Gradients at column j. If not `partial`, all lanes are valid; otherwise lanes beyond `seen` are
  // 0.
  template <bool partial>
  HWY_INLINE Gradients at(const Row& row, std::int64_t j) const {
    const FloatVec zero = hn::Zero(kFloat);
    if (partial && j >= row.seen) return {zero, zero};
    const FloatVec scale = hn::Set(kFloat, tile_.scale * E::kUnit);
    const FloatVec p =
        E::of(Exponents<partial>(row.scores, row.key_bias, j, row.seen, scale, row.shift));
    const FloatVec dp = LoadFloats(row.dp + j);
    FloatVec kept_p = p, rest;
    if constexpr (drops != Drops::nothing) {
      const auto gone = gone_at(row, j);
      const FloatVec by = hn::Set(kFloat, kept_scale(*tile_.shape));
      kept_p = hn::IfThenZeroElse(gone, p);
      rest = hn::IfThenElse(gone, hn::Neg(row.delta), hn::MulSub(dp, by, row.delta));
    } else {
      rest = hn::Sub(dp, row.delta);
    }
    if constexpr (capped)
      rest = hn::Mul(rest, soft_cap_slope(LoadFloats(row.scores + j),
                                          hn::Set(kFloat, 1 / tile_.shape->soft_cap)));
    // dp is 0 beyond the last key. Elsewhere an infinite dp must not give NaN, so p = 0 implies ds
    // = 0.
    return {kept_p, hn::IfThenElseZero(hn::Gt(p, zero), hn::Mul(p, rest))};
  }

 private:
  HWY_INLINE hn::Mask<FloatTag> gone_at(const Row& row, std::int64_t j) const {
    if constexpr (drops == Drops::kept) return LoadGone(row.kept + j / 8);
    return dropped(row.bits + j, dropout_.threshold());
  }

  const ScoreTile tile_;
  const ScoreGradients g_;
  const TileDropout dropout_;
  const std::int64_t kept_row_;
};

// Calls body<drops, capped>() with the modes that apply to the tile.
template <class Body>
HWY_INLINE void WithModes(const ScoreTile& tile, const Body& body) {
  const auto with_drops = [&]<bool capped>() HWY_ATTR {
    if (tile.shape->dropout == 0)
      body.template operator()<Drops::nothing, capped>();
    else if (tile.kept)
      body.template operator()<Drops::kept, capped>();
    else
      body.template operator()<Drops::drawn, capped>();
  };
  if (tile.shape->soft_cap > 0)
    with_drops.template operator()<true>();
  else
    with_drops.template operator()<false>();
}

template <Drops drops, bool capped>
HWY_INLINE void GradientsF32(const ScoreTile& tile, const ScoreGradients& g) {
  const std::int64_t lanes = FloatLanes();
  const TileGradients<Precision::f32, drops, capped> gradients(tile, g);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const auto row = gradients.row(r, tile.random);
    for (std::int64_t j = 0; j < tile.columns; j += lanes) {
      const Gradients at = gradients.template at<true>(row, j);
      StoreFloats(at.p, tile.scores + r * tile.stride + j);
      StoreFloats(at.ds, g.dp + r * tile.stride + j);
    }
  }
}
void ScoreGradientsF32(const ScoreTile& tile, const ScoreGradients& g) {
  WithModes(tile,
            [&]<Drops drops, bool capped>() HWY_ATTR { GradientsF32<drops, capped>(tile, g); });
}

// Destinations of two queries' vectors in bf16. `pairs` gets both, interleaved in 32-bit words with
// the first query in the low half. low_row and high_row, if not null, get each query's own vector.
struct PairPlaces {
  std::uint32_t* pairs;
  std::uint16_t *low_row, *high_row;
};
HWY_INLINE void StorePairs(FloatVec low, FloatVec high, const PairPlaces& to) {
  const hn::RebindToUnsigned<FloatTag> du;
#if HWY_TARGET <= HWY_AVX3
  const hn::ScalableTag<std::uint16_t> d16;
  const hn::Half<decltype(d16)> dh;
  HWY_ALIGN static constexpr std::uint16_t kInTurn[] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const BF16Vec both = TwoAsBFloat16(low, high);
  const BF16Vec pairs{_mm512_permutexvar_epi16(hn::Load(d16, kInTurn).raw, both.raw)};
  hn::StoreU(hn::BitCast(du, pairs), du, to.pairs);
  if (to.low_row) hn::StoreU(hn::LowerHalf(dh, both), dh, to.low_row);
  if (to.high_row) hn::StoreU(hn::UpperHalf(dh, both), dh, to.high_row);
#else
  const hn::Rebind<std::uint16_t, FloatTag> dh;
  const auto low_bits = BFloat16Bits(low), high_bits = BFloat16Bits(high);
  hn::StoreU(hn::Or(low_bits, hn::ShiftLeft<16>(high_bits)), du, to.pairs);
  if (to.low_row) hn::StoreU(hn::DemoteTo(dh, hn::BitCast(IntTag(), low_bits)), dh, to.low_row);
  if (to.high_row) hn::StoreU(hn::DemoteTo(dh, hn::BitCast(IntTag(), high_bits)), dh, to.high_row);
#endif
}

// Handles two queries at a time.
template <Drops drops, bool capped>
HWY_INLINE void GradientPairs(const ScoreTile& tile, const ScoreGradients& g) {
  const std::int64_t lanes = FloatLanes();
  const TileGradients<Precision::bf16, drops, capped> gradients(tile, g);
  std::uint32_t* rooms[2] = {tile.random, tile.random};
  if (drops == Drops::drawn) rooms[1] += random_room(static_cast<std::size_t>(tile.columns));
  for (std::int64_t r = 0; r < tile.rows; r += 2) {
    const auto low = gradients.row(r, rooms[0]), high = gradients.row(r + 1, rooms[1]);
    std::uint16_t* low_row = g.ds_rows + r * tile.stride;
    std::uint16_t* high_row = r + 1 < tile.rows ? low_row + tile.stride : nullptr;
    std::uint32_t* p_pairs = g.p_pairs + r / 2 * tile.stride;
    std::uint32_t* ds_pairs = g.ds_pairs + r / 2 * tile.stride;
    const auto store = [&](const Gradients& a, const Gradients& b, std::int64_t j) HWY_ATTR {
      StorePairs(a.p, b.p, {p_pairs + j, nullptr, nullptr});
      StorePairs(a.ds, b.ds, {ds_pairs + j, low_row + j, high_row ? high_row + j : nullptr});
    };
    std::int64_t j = 0;
    for (const std::int64_t both = std::min(low.seen, high.seen); j + lanes <= both; j += lanes)
      store(gradients.template at<false>(low, j), gradients.template at<false>(high, j), j);
    for (; j < tile.columns; j += lanes)
      store(gradients.template at<true>(low, j), gradients.template at<true>(high, j), j);
  }
}
void ScoreGradientsBF16(const ScoreTile& tile, const ScoreGradients& g) {
  WithModes(tile,
            [&]<Drops drops, bool capped>() HWY_ATTR { GradientPairs<drops, capped>(tile, g); });
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
HWY_INLINE void NarrowRow(const float* from, float factor, std::int64_t columns, T* to) {
  const std::int64_t lanes = FloatLanes();
  const FloatVec f = hn::Set(kFloat, factor);
  std::int64_t j = 0;
  for (; j + lanes <= columns; j += lanes) StoreFloats(hn::Mul(LoadFloats(from + j), f), to + j);
  if (j < columns)
    StoreSomeFloats(hn::Mul(LoadSomeFloats(from + j, columns - j), f), to + j, columns - j);
}
// Scales each row by its own entry of `factors`, or all rows by `factor` if `factors` is null.
void NarrowRows(DType dtype, const float* from, std::int64_t from_stride, std::int64_t rows,
                std::int64_t columns, const float* factors, float factor, void* to,
                std::int64_t stride) {
  with_float(dtype, [&](auto type) HWY_ATTR {
    auto* rows_to = static_cast<decltype(type)*>(to);
    for (std::int64_t r = 0; r < rows; ++r)
      NarrowRow(from + r * from_stride, factors ? factors[r] : factor, columns,
                rows_to + r * stride);
  });
}

template <typename T>
HWY_INLINE float Dot(const T* a, const T* b, std::int64_t count) {
  const std::int64_t lanes = FloatLanes();
  FloatVec sum = hn::Zero(kFloat);
  std::int64_t j = 0;
  for (; j + lanes <= count; j += lanes)
    sum = hn::MulAdd(LoadFloats(a + j), LoadFloats(b + j), sum);
  if (j < count)
    sum = hn::MulAdd(LoadSomeFloats(a + j, count - j), LoadSomeFloats(b + j, count - j), sum);
  return hn::GetLane(hn::SumOfLanes(kFloat, sum));
}
// Handles all rows in one loop, so that cache misses of several rows overlap.
void RowDots(DType dtype, const void* a, std::int64_t a_stride, const void* b,
             std::int64_t b_stride, std::int64_t rows, std::int64_t columns, float* dots) {
  with_float(dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (std::int64_t r = 0; r < rows; ++r)
      dots[r] = Dot(static_cast<const T*>(a) + r * a_stride,
                    static_cast<const T*>(b) + r * b_stride, columns);
  });
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {

HWY_EXPORT(KeptRowBytes);
HWY_EXPORT(CapScores);
HWY_EXPORT(AddRelativeBias);
HWY_EXPORT(SumRelativeBiasOf);
HWY_EXPORT(SoftmaxTileF32);
HWY_EXPORT(SoftmaxTileBF16);
HWY_EXPORT(ScoreGradientsF32);
HWY_EXPORT(ScoreGradientsBF16);
HWY_EXPORT(WidenRowsBF16);
HWY_EXPORT(WidenRowsF16);
HWY_EXPORT(NarrowRows);
HWY_EXPORT(RowDots);

std::int64_t kept_row_bytes(std::int64_t keys) { return HWY_DYNAMIC_DISPATCH(KeptRowBytes)(keys); }

void cap_scores(const ScoreTile& tile) { HWY_DYNAMIC_DISPATCH(CapScores)(tile); }

void add_relative_bias(const ScoreTile& tile) { HWY_DYNAMIC_DISPATCH(AddRelativeBias)(tile); }

void sum_relative_bias(const ScoreTile& tile, const void* ds, float* sums) {
  HWY_DYNAMIC_DISPATCH(SumRelativeBiasOf)(tile, ds, sums);
}

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
                 std::int64_t rows, const float* largest, float* sum, void* to,
                 std::int64_t row_stride, float* log_sum_exp) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const bool saw = sum[r] > 0 || std::isnan(sum[r]);
    if (log_sum_exp)
      log_sum_exp[r] =
          saw ? largest[r] + std::log(sum[r]) : -std::numeric_limits<float>::infinity();
    sum[r] = saw ? kept_scale(shape) / sum[r] : 0.0f;
  }
  HWY_DYNAMIC_DISPATCH(NarrowRows)
  (shape.dtype, out, out_stride, rows, shape.head_dim, sum, 0, to, row_stride);
}

void row_dots(const AttentionShape& shape, const void* dout, std::int64_t dout_stride,
              const void* out, std::int64_t out_stride, std::int64_t rows, float* delta) {
  HWY_DYNAMIC_DISPATCH(RowDots)
  (shape.dtype, dout, dout_stride, out, out_stride, rows, shape.head_dim, delta);
}

void widen_rows(DType dtype, const void* from, std::int64_t stride, std::int64_t rows,
                std::int64_t columns, float* to) {
  if (dtype == DType::bf16)
    HWY_DYNAMIC_DISPATCH(WidenRowsBF16)(from, stride, rows, columns, to);
  else
    HWY_DYNAMIC_DISPATCH(WidenRowsF16)(from, stride, rows, columns, to);
}

void narrow_rows(DType dtype, const float* from, std::int64_t from_stride, std::int64_t rows,
                 std::int64_t columns, float factor, void* to, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(NarrowRows)
  (dtype, from, from_stride, rows, columns, nullptr, factor, to, stride);
}

}  // namespace shoal::kernels
#endif
