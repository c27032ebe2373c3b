#include "shoal/kernels/cpu/cross_entropy_row.h"

#include <algorithm>
#include <cmath>

#include "shoal/kernels/with_type.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/cross_entropy_row.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shoal/kernels/cpu/loops-inl.h"
#include "shoal/kernels/cpu/math-inl.h"
// Must come last: needs the target's definitions.
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

// Maximum and sum of the logits.
void MaxAndSum(const float* x, std::int64_t count, float* largest, float* total) {
  const std::int64_t lanes = FloatLanes();
  FloatVec m0 = hn::Set(kFloat, -INFINITY), m1 = m0, s0 = hn::Zero(kFloat), s1 = s0;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const FloatVec a = LoadFloats(x + i), b = LoadFloats(x + i + lanes);
    m0 = hn::Max(m0, a);
    m1 = hn::Max(m1, b);
    s0 = hn::Add(s0, a);
    s1 = hn::Add(s1, b);
  }
  float m = hn::GetLane(hn::MaxOfLanes(kFloat, hn::Max(m0, m1)));
  float s = hn::GetLane(hn::SumOfLanes(kFloat, hn::Add(s0, s1)));
  for (; i < count; ++i) {
    m = x[i] > m ? x[i] : m;
    s += x[i];
  }
  *largest = m;
  *total = s;
}

void CapLogits(float* x, std::int64_t count, float cap) {
  map(count, SoftCap{hn::Set(kFloat, 1 / cap), hn::Set(kFloat, cap)}, x,
      static_cast<const float*>(x));
}

// The sum of exp(x - shift), which replace x if `replaces`.
template <bool replaces>
HWY_INLINE float SumOfExp(float* x, std::int64_t count, float shift) {
  const std::int64_t lanes = FloatLanes();
  const FloatVec minus = hn::Set(kFloat, shift);
  FloatVec s0 = hn::Zero(kFloat), s1 = s0;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const FloatVec a = hn::Exp(kFloat, hn::Sub(LoadFloats(x + i), minus));
    const FloatVec b = hn::Exp(kFloat, hn::Sub(LoadFloats(x + i + lanes), minus));
    if constexpr (replaces) {
      StoreFloats(a, x + i);
      StoreFloats(b, x + i + lanes);
    }
    s0 = hn::Add(s0, a);
    s1 = hn::Add(s1, b);
  }
  for (; i < count; i += lanes) {
    const std::int64_t some = HWY_MIN(lanes, count - i);
    const FloatVec a = hn::Exp(kFloat, hn::Sub(LoadSomeFloats(x + i, some), minus));
    if constexpr (replaces) StoreSomeFloats(a, x + i, some);
    s0 = hn::Add(s0, hn::IfThenElseZero(hn::FirstN(kFloat, static_cast<std::size_t>(some)), a));
  }
  return hn::GetLane(hn::SumOfLanes(kFloat, hn::Add(s0, s1)));
}
float ExpAndSum(float* x, std::int64_t count, float shift) {
  return SumOfExp<true>(x, count, shift);
}
float SumOfExponentials(float* x, std::int64_t count, float shift) {
  return SumOfExp<false>(x, count, shift);
}

// out = of(x). `out` may alias x from its start: writes never overtake the reads.
template <class Of, typename T>
HWY_INLINE void WriteGradient(const float* x, std::int64_t count, const Of& of, T* out) {
  const std::int64_t lanes = FloatLanes();
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) StoreFloats(of(LoadFloats(x + i)), out + i);
  if (i < count) StoreSomeFloats(of(LoadSomeFloats(x + i, count - i)), out + i, count - i);
}
struct Scaled {
  FloatVec factor, offset;
  HWY_INLINE FloatVec operator()(FloatVec e) const { return hn::MulSub(e, factor, offset); }
};
struct ScaledAndCapped {
  Scaled scaled;
  FloatVec largest, over_cap;
  HWY_INLINE FloatVec operator()(FloatVec capped) const {
    return hn::Mul(scaled(hn::Exp(kFloat, hn::Sub(capped, largest))),
                   soft_cap_slope(capped, over_cap));
  }
};
// All but the target's.
void RowGradient(const ShardRowGradient& row, void* gradient, DType dtype) {
  const Scaled scaled{hn::Set(kFloat, row.factor), hn::Set(kFloat, row.offset)};
  with_float(dtype, [&](auto type) HWY_ATTR {
    auto* const out = static_cast<decltype(type)*>(gradient);
    if (row.soft_cap > 0)
      WriteGradient(
          row.kept, row.columns,
          ScaledAndCapped{scaled, hn::Set(kFloat, row.largest), hn::Set(kFloat, 1 / row.soft_cap)},
          out);
    else
      WriteGradient(row.kept, row.columns, scaled, out);
  });
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {

HWY_EXPORT(MaxAndSum);
HWY_EXPORT(ExpAndSum);
HWY_EXPORT(CapLogits);
HWY_EXPORT(SumOfExponentials);
HWY_EXPORT(RowGradient);

namespace {

// Writes a row's gradient, with `at_target` at the target. Both lack the slope of the soft cap.
void write_gradient(const ShardRowGradient& row, float at_target, void* gradient, DType dtype) {
  if (row.soft_cap > 0 && row.target >= 0) {
    const float bent = row.kept[row.target] / row.soft_cap;
    at_target *= 1 - bent * bent;
  }
  HWY_DYNAMIC_DISPATCH(RowGradient)(row, gradient, dtype);
  if (row.target >= 0)
    with_type(dtype, [&](auto type) {
      using T = decltype(type);
      static_cast<T*>(gradient)[row.target] = static_cast<T>(at_target);
    });
}

// The sum of exp(logit - largest). Without a soft cap, these replace the logits.
float sum_of_exponentials(float* logits, std::int64_t columns, float largest, float soft_cap) {
  return soft_cap > 0 ? HWY_DYNAMIC_DISPATCH(SumOfExponentials)(logits, columns, largest)
                      : HWY_DYNAMIC_DISPATCH(ExpAndSum)(logits, columns, largest);
}

}  // namespace

CrossEntropyRow cross_entropy_row(float* logits, std::int64_t vocabulary, std::int32_t target,
                                  float label_smoothing, float soft_cap, float scale,
                                  void* gradient, DType gradient_dtype) {
  if (soft_cap > 0) HWY_DYNAMIC_DISPATCH(CapLogits)(logits, vocabulary, soft_cap);
  float largest = 0, total = 0;
  HWY_DYNAMIC_DISPATCH(MaxAndSum)(logits, vocabulary, &largest, &total);
  const float at_target = logits[target];
  CrossEntropyRow result;
  result.correct = at_target == largest;
  for (std::int64_t j = 0; result.correct && j < target; ++j) result.correct = logits[j] != largest;

  // Highway's Exp turns NaN into 0, and a maximum may drop NaN. The sum of the logits (`total`)
  // keeps NaN.
  const float sum =
      std::isnan(total) ? total : sum_of_exponentials(logits, vocabulary, largest, soft_cap);
  const double n = static_cast<double>(vocabulary),
               smoothing = static_cast<double>(label_smoothing),
               log_sum = static_cast<double>(largest) + std::log(static_cast<double>(sum));
  double loss = (1 - smoothing) * (log_sum - static_cast<double>(at_target));
  // Skipped for 0, since the total is infinite if a class is masked by -inf.
  if (smoothing > 0) loss += smoothing * (log_sum - static_cast<double>(total) / n);
  result.loss = static_cast<float>(loss);
  if (!gradient) return result;

  const float factor = scale / sum, offset = static_cast<float>(smoothing / n) * scale;
  // Subtracted before rounding, so that the target's gradient is rounded only once.
  const float p = (soft_cap > 0 ? std::exp(at_target - largest) : logits[target]) / sum;
  write_gradient({.kept = logits,
                  .columns = vocabulary,
                  .target = target,
                  .factor = factor,
                  .offset = offset,
                  .largest = largest,
                  .soft_cap = soft_cap},
                 scale * (p - 1 + label_smoothing) - offset, gradient, gradient_dtype);
  return result;
}

ShardRow shard_row_statistics(float* logits, std::int64_t columns, std::int64_t target,
                              float soft_cap) {
  ShardRow row;
  if (columns == 0) {
    row.largest = -INFINITY;
    return row;
  }
  if (soft_cap > 0) HWY_DYNAMIC_DISPATCH(CapLogits)(logits, columns, soft_cap);
  HWY_DYNAMIC_DISPATCH(MaxAndSum)(logits, columns, &row.largest, &row.total);
  if (target >= 0) row.target_logit = logits[target];
  if (std::isnan(row.total)) {  // as above: the sum carries NaN to every rank
    row.sum = row.total;
  } else if (row.largest == -INFINITY) {  // every class here is masked
    std::fill_n(logits, columns, 0.0f);
  } else {
    row.sum = sum_of_exponentials(logits, columns, row.largest, soft_cap);
  }
  return row;
}

void shard_row_gradient(const ShardRowGradient& row, void* gradient, DType gradient_dtype) {
  float at_target = 0;
  if (row.target >= 0) {
    const float kept = row.kept[row.target],
                exponential = row.soft_cap > 0 ? std::exp(kept - row.largest) : kept;
    at_target = exponential * row.factor - row.offset - row.target_less;
  }
  write_gradient(row, at_target, gradient, gradient_dtype);
}

}  // namespace shoal::kernels
#endif
