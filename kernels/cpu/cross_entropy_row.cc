#include "shoal/kernels/cpu/cross_entropy_row.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/cross_entropy_row.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shoal/kernels/cpu/simd-inl.h"
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

// x = exp(x - shift); returns the sum.
float ExpAndSum(float* x, std::int64_t count, float shift) {
  const std::int64_t lanes = FloatLanes();
  const FloatVec minus = hn::Set(kFloat, shift);
  FloatVec s0 = hn::Zero(kFloat), s1 = s0;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const FloatVec a = hn::Exp(kFloat, hn::Sub(LoadFloats(x + i), minus));
    const FloatVec b = hn::Exp(kFloat, hn::Sub(LoadFloats(x + i + lanes), minus));
    StoreFloats(a, x + i);
    StoreFloats(b, x + i + lanes);
    s0 = hn::Add(s0, a);
    s1 = hn::Add(s1, b);
  }
  for (; i < count; i += lanes) {
    const std::int64_t some = HWY_MIN(lanes, count - i);
    const FloatVec a = hn::Exp(kFloat, hn::Sub(LoadSomeFloats(x + i, some), minus));
    StoreSomeFloats(a, x + i, some);
    s0 = hn::Add(s0, hn::IfThenElseZero(hn::FirstN(kFloat, static_cast<std::size_t>(some)), a));
  }
  return hn::GetLane(hn::SumOfLanes(kFloat, hn::Add(s0, s1)));
}

// out = x · factor - offset. `out` may alias x from its start: writes never overtake the reads.
template <typename T>
void ScaleInto(const float* x, std::int64_t count, float factor, float offset, T* out) {
  const std::int64_t lanes = FloatLanes();
  const FloatVec f = hn::Set(kFloat, factor), o = hn::Set(kFloat, offset);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) StoreFloats(hn::MulSub(LoadFloats(x + i), f, o), out + i);
  if (i < count)
    StoreSomeFloats(hn::MulSub(LoadSomeFloats(x + i, count - i), f, o), out + i, count - i);
}
void ScaleIntoF32(const float* x, std::int64_t count, float factor, float offset, void* out) {
  ScaleInto(x, count, factor, offset, static_cast<float*>(out));
}
void ScaleIntoBF16(const float* x, std::int64_t count, float factor, float offset, void* out) {
  ScaleInto(x, count, factor, offset, static_cast<bfloat16*>(out));
}
void ScaleIntoF16(const float* x, std::int64_t count, float factor, float offset, void* out) {
  ScaleInto(x, count, factor, offset, static_cast<float16*>(out));
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {

HWY_EXPORT(MaxAndSum);
HWY_EXPORT(ExpAndSum);
HWY_EXPORT(ScaleIntoF32);
HWY_EXPORT(ScaleIntoBF16);
HWY_EXPORT(ScaleIntoF16);

CrossEntropyRow cross_entropy_row(float* logits, std::int64_t vocabulary, std::int32_t target,
                                  float label_smoothing, float scale, void* gradient,
                                  DType gradient_dtype) {
  float largest = 0, total = 0;
  HWY_DYNAMIC_DISPATCH(MaxAndSum)(logits, vocabulary, &largest, &total);
  const float at_target = logits[target];
  CrossEntropyRow result;
  result.correct = at_target == largest;
  for (std::int64_t j = 0; result.correct && j < target; ++j) result.correct = logits[j] != largest;

  // Highway's Exp turns NaN into 0, and a maximum may drop NaN. The sum of the logits (`total`)
  // keeps NaN.
  const float sum =
      std::isnan(total) ? total : HWY_DYNAMIC_DISPATCH(ExpAndSum)(logits, vocabulary, largest);
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
  const float p = logits[target] / sum;
  const float target_gradient = scale * (p - 1 + label_smoothing) - offset;
  const auto at = static_cast<std::size_t>(target);
  switch (gradient_dtype) {
    case DType::f32:
      HWY_DYNAMIC_DISPATCH(ScaleIntoF32)(logits, vocabulary, factor, offset, gradient);
      static_cast<float*>(gradient)[at] = target_gradient;
      break;
    case DType::bf16:
      HWY_DYNAMIC_DISPATCH(ScaleIntoBF16)(logits, vocabulary, factor, offset, gradient);
      static_cast<bfloat16*>(gradient)[at] = bfloat16(target_gradient);
      break;
    default:
      HWY_DYNAMIC_DISPATCH(ScaleIntoF16)(logits, vocabulary, factor, offset, gradient);
      static_cast<float16*>(gradient)[at] = float16(target_gradient);
  }
  return result;
}

ShardRow shard_row_statistics(float* logits, std::int64_t columns, std::int64_t target) {
  ShardRow row;
  if (columns == 0) {
    row.largest = -INFINITY;
    return row;
  }
  HWY_DYNAMIC_DISPATCH(MaxAndSum)(logits, columns, &row.largest, &row.total);
  if (target >= 0) row.target_logit = logits[target];
  if (std::isnan(row.total)) {  // as above: the sum carries NaN to every rank
    row.sum = row.total;
  } else if (row.largest == -INFINITY) {  // every class here is masked
    std::fill_n(logits, columns, 0.0f);
  } else {
    row.sum = HWY_DYNAMIC_DISPATCH(ExpAndSum)(logits, columns, row.largest);
  }
  return row;
}

void shard_row_gradient(const float* exponentials, std::int64_t columns, std::int64_t target,
                        float factor, float offset, float target_less, void* gradient,
                        DType gradient_dtype) {
  const float at_target = target < 0 ? 0 : exponentials[target] * factor - offset - target_less;
  const auto at = static_cast<std::size_t>(target);
  switch (gradient_dtype) {
    case DType::f32:
      HWY_DYNAMIC_DISPATCH(ScaleIntoF32)(exponentials, columns, factor, offset, gradient);
      if (target >= 0) static_cast<float*>(gradient)[at] = at_target;
      break;
    case DType::bf16:
      HWY_DYNAMIC_DISPATCH(ScaleIntoBF16)(exponentials, columns, factor, offset, gradient);
      if (target >= 0) static_cast<bfloat16*>(gradient)[at] = bfloat16(at_target);
      break;
    default:
      HWY_DYNAMIC_DISPATCH(ScaleIntoF16)(exponentials, columns, factor, offset, gradient);
      if (target >= 0) static_cast<float16*>(gradient)[at] = float16(at_target);
  }
}

}  // namespace shoal::kernels
#endif
