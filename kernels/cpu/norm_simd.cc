#include "shoal/kernels/cpu/norm_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/norm_simd.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include <cmath>
#include <limits>

#include "shoal/kernels/cpu/loops-inl.h"
#include "shoal/kernels/cpu/math-inl.h"
#include "shoal/kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

// Computes one row of dropout(x), plus residual if `adds`.
template <class T, bool adds>
HWY_INLINE void drop_row(const DropoutPlan& plan, const RandomRows& random, std::int64_t row,
                         const T* x, const T* residual, T* out, std::int64_t columns) {
  constexpr std::int64_t kChunk = 1024;
  HWY_ALIGN std::uint32_t room[random_room(kChunk)];
  for (std::int64_t column = 0; column < columns; column += kChunk) {
    const std::int64_t count = HWY_MIN(kChunk, columns - column);
    const std::uint32_t* bits =
        random.row(plan.sample(row), plan.first_element(row) + static_cast<std::uint64_t>(column),
                   static_cast<std::size_t>(count), room);
    drop_range<T, adds>(bits, plan.threshold, plan.scale, x + column,
                        adds ? residual + column : nullptr, out + column, count);
  }
}

// One row of sum = residual + dropout(x), rounded to T before it is normalised, since backward
// reads the rounded value.
template <class T>
HWY_INLINE void residual_row(const DropoutPlan* plan, const RandomRows& random, std::int64_t row,
                             const T* x, const T* residual, T* sum, std::int64_t columns) {
  if (!plan) {
    map(columns, [](FloatVec r, FloatVec v) HWY_ATTR { return hn::Add(r, v); }, sum, residual, x);
    return;
  }
  drop_row<T, true>(*plan, random, row, x, residual, sum, columns);
}

template <class T, class W>
HWY_INLINE void layer_norm_typed(const LayerNormArgs& args, const DropoutPlan* plan,
                                 std::int64_t first, std::int64_t rows) {
  const std::int64_t columns = args.x.shape.columns();
  const auto* gamma = static_cast<const W*>(args.gamma.data);
  const auto* beta = static_cast<const W*>(args.beta.data);
  const FloatVec offset = hn::Set(kFloat, args.gamma_offset);
  const RandomRows random(plan ? plan->key : RandomKey(RandomSite()));
  for (std::int64_t row = first; row < first + rows; ++row) {
    const T* x = static_cast<const T*>(args.x.data) + row * columns;
    if (args.residual.defined()) {
      T* sum = static_cast<T*>(args.sum.data) + row * columns;
      residual_row(plan, random, row, x, static_cast<const T*>(args.residual.data) + row * columns,
                   sum, columns);
      x = sum;
    }
    float mean = 0;
    if (beta)
      mean =
          sum_of(columns, [](FloatVec v) HWY_ATTR { return v; }, x) / static_cast<float>(columns);
    const FloatVec mean_lanes = hn::Set(kFloat, mean);
    const float variance = sum_of(
                               columns,
                               [mean_lanes](FloatVec v) HWY_ATTR {
                                 const FloatVec centred = hn::Sub(v, mean_lanes);
                                 return hn::Mul(centred, centred);
                               },
                               x) /
                           static_cast<float>(columns);
    const float rstd = 1.0f / std::sqrt(variance + args.epsilon);
    const FloatVec rstd_lanes = hn::Set(kFloat, rstd);
    T* y = static_cast<T*>(args.y.data) + row * columns;
    if (beta)
      map(
          columns,
          [mean_lanes, rstd_lanes, offset](FloatVec v, FloatVec g, FloatVec b) HWY_ATTR {
            return hn::MulAdd(hn::Mul(hn::Sub(v, mean_lanes), rstd_lanes), hn::Add(g, offset), b);
          },
          y, x, gamma, beta);
    else
      map(
          columns,
          [rstd_lanes, offset](FloatVec v, FloatVec g)
              HWY_ATTR { return hn::Mul(hn::Mul(v, rstd_lanes), hn::Add(g, offset)); },
          y, x, gamma);
    if (args.mean.defined()) static_cast<float*>(args.mean.data)[row] = mean;
    if (args.rstd.defined()) static_cast<float*>(args.rstd.data)[row] = rstd;
  }
}

void LayerNorm(const LayerNormArgs& args, const DropoutPlan* plan, std::int64_t first,
               std::int64_t rows) {
  with_float(args.x.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    if (args.gamma.dtype == DType::f32)
      layer_norm_typed<T, float>(args, plan, first, rows);
    else
      layer_norm_typed<T, T>(args, plan, first, rows);
  });
}

template <class T, class W>
HWY_INLINE void layer_norm_backward_typed(const LayerNormBackwardArgs& args,
                                          const DropoutPlan* plan, std::int64_t first,
                                          std::int64_t rows) {
  const std::int64_t columns = args.x.shape.columns();
  const RandomRows random(plan ? plan->key : RandomKey(RandomSite()));
  const auto* gamma = static_cast<const W*>(args.gamma.data);
  const FloatVec inverse = hn::Set(kFloat, 1.0f / static_cast<float>(columns));
  const FloatVec offset = hn::Set(kFloat, args.gamma_offset);
  for (std::int64_t row = first; row < first + rows; ++row) {
    const T* x = static_cast<const T*>(args.x.data) + row * columns;
    const T* dy = static_cast<const T*>(args.dy.data) + row * columns;
    T* dx = static_cast<T*>(args.dx.data) + row * columns;
    const bool centred = args.mean.defined();
    const FloatVec mean =
        hn::Set(kFloat, centred ? static_cast<const float*>(args.mean.data)[row] : 0.0f);
    const FloatVec rstd = hn::Set(kFloat, static_cast<const float*>(args.rstd.data)[row]);
    // Lanes past the end have dy = 0 and add nothing.
    FloatVec sum = hn::Zero(kFloat), projection = hn::Zero(kFloat);
    for_each(
        columns,
        [&](FloatVec g, FloatVec v, FloatVec w) HWY_ATTR {
          const FloatVec scaled = hn::Mul(g, hn::Add(w, offset));
          sum = hn::Add(sum, scaled);
          projection = hn::MulAdd(scaled, hn::Mul(hn::Sub(v, mean), rstd), projection);
        },
        dy, x, gamma);
    const FloatVec average =
        centred ? hn::Mul(hn::SumOfLanes(kFloat, sum), inverse) : hn::Zero(kFloat);
    const FloatVec along = hn::Mul(hn::SumOfLanes(kFloat, projection), inverse);
    const auto gradient = [=](FloatVec g, FloatVec v, FloatVec w) HWY_ATTR {
      const FloatVec normalised = hn::Mul(hn::Sub(v, mean), rstd);
      const FloatVec rest = hn::Sub(hn::Mul(g, hn::Add(w, offset)), average);
      return hn::Mul(rstd, hn::NegMulAdd(normalised, along, rest));
    };
    if (args.dx_residual.defined())
      map(
          columns,
          [&](FloatVec g, FloatVec v, FloatVec w, FloatVec skip)
              HWY_ATTR { return hn::Add(gradient(g, v, w), skip); },
          dx, dy, x, gamma, static_cast<const T*>(args.dx_residual.data) + row * columns);
    else
      map(columns, gradient, dx, dy, x, gamma);
    if (plan)
      drop_row<T, false>(*plan, random, row, dx, nullptr,
                         static_cast<T*>(args.dx_branch.data) + row * columns, columns);
  }
}

void LayerNormBackward(const LayerNormBackwardArgs& args, const DropoutPlan* plan,
                       std::int64_t first, std::int64_t rows) {
  with_float(args.x.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    if (args.gamma.dtype == DType::f32)
      layer_norm_backward_typed<T, float>(args, plan, first, rows);
    else
      layer_norm_backward_typed<T, T>(args, plan, first, rows);
  });
}

void LayerNormWeight(const ConstView& dy, const ConstView& x, const float* mean, const float* rstd,
                     std::int64_t first, std::int64_t rows, float* sums) {
  const std::int64_t columns = x.shape.columns();
  std::memset(sums, 0, 2 * static_cast<std::size_t>(columns) * sizeof(float));
  with_float(x.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const std::int64_t lanes = FloatLanes();
    // Row by row, so that memory is read in order and the sums stay in L1.
    for (std::int64_t row = first; row < first + rows; ++row) {
      const T* g = static_cast<const T*>(dy.data) + row * columns;
      const T* v = static_cast<const T*>(x.data) + row * columns;
      const FloatVec m = hn::Set(kFloat, mean ? mean[row] : 0.0f), r = hn::Set(kFloat, rstd[row]);
      float* dgamma = sums;
      float* dbeta = sums + columns;
      std::int64_t i = 0;
      for (; i + lanes <= columns; i += lanes) {
        const FloatVec gradient = LoadFloats(g + i);
        const FloatVec normalised = hn::Mul(hn::Sub(LoadFloats(v + i), m), r);
        StoreFloats(hn::MulAdd(gradient, normalised, LoadFloats(dgamma + i)), dgamma + i);
        StoreFloats(hn::Add(LoadFloats(dbeta + i), gradient), dbeta + i);
      }
      if (i < columns) {
        const std::int64_t some = columns - i;
        const FloatVec gradient = LoadSomeFloats(g + i, some);
        const FloatVec normalised = hn::Mul(hn::Sub(LoadSomeFloats(v + i, some), m), r);
        StoreSomeFloats(hn::MulAdd(gradient, normalised, LoadSomeFloats(dgamma + i, some)),
                        dgamma + i, some);
        StoreSomeFloats(hn::Add(LoadSomeFloats(dbeta + i, some), gradient), dbeta + i, some);
      }
    }
  });
}

void Softmax(const ConstView& x, const View& y, std::int64_t first, std::int64_t rows) {
  const std::int64_t columns = x.shape.columns();
  with_float(x.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (std::int64_t row = first; row < first + rows; ++row) {
      const T* from = static_cast<const T*>(x.data) + row * columns;
      const std::int64_t lanes = FloatLanes();
      FloatVec largest = hn::Set(kFloat, -std::numeric_limits<float>::infinity());
      std::int64_t i = 0;
      for (; i + lanes <= columns; i += lanes) largest = hn::Max(largest, LoadFloats(from + i));
      const FloatVec last = LoadSomeFloats(from + i, columns - i);
      const auto inside = hn::FirstN(kFloat, static_cast<std::size_t>(columns - i));
      largest = hn::MaxOfLanes(kFloat, hn::IfThenElse(inside, hn::Max(largest, last), largest));
      // The exponentials are computed twice. 16-bit outputs cannot hold them, and f32 is limited by
      // memory bandwidth anyway.
      const auto exponential = [largest](FloatVec v) HWY_ATTR { return exp(hn::Sub(v, largest)); };
      const FloatVec inverse = hn::Set(kFloat, 1.0f / sum_of(columns, exponential, from));
      map(
          columns, [&](FloatVec v) HWY_ATTR { return hn::Mul(exponential(v), inverse); },
          static_cast<T*>(y.data) + row * columns, from);
    }
  });
}

void SoftmaxBackward(const ConstView& y, const ConstView& dy, const View& dx, std::int64_t first,
                     std::int64_t rows) {
  const std::int64_t columns = y.shape.columns();
  with_float(y.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (std::int64_t row = first; row < first + rows; ++row) {
      const T* p = static_cast<const T*>(y.data) + row * columns;
      const T* g = static_cast<const T*>(dy.data) + row * columns;
      const FloatVec dot = hn::Set(
          kFloat,
          sum_of(columns, [](FloatVec a, FloatVec b) HWY_ATTR { return hn::Mul(a, b); }, p, g));
      map(
          columns, [dot](FloatVec a, FloatVec b) HWY_ATTR { return hn::Mul(a, hn::Sub(b, dot)); },
          static_cast<T*>(dx.data) + row * columns, p, g);
    }
  });
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {
HWY_EXPORT(LayerNorm);
HWY_EXPORT(LayerNormBackward);
HWY_EXPORT(LayerNormWeight);
HWY_EXPORT(Softmax);
HWY_EXPORT(SoftmaxBackward);

void layer_norm_rows(const LayerNormArgs& args, const DropoutPlan* plan, std::int64_t first,
                     std::int64_t rows) {
  HWY_DYNAMIC_DISPATCH(LayerNorm)(args, plan, first, rows);
}
void layer_norm_backward_rows(const LayerNormBackwardArgs& args, const DropoutPlan* plan,
                              std::int64_t first, std::int64_t rows) {
  HWY_DYNAMIC_DISPATCH(LayerNormBackward)(args, plan, first, rows);
}
void layer_norm_weight_rows(const ConstView& dy, const ConstView& x, const float* mean,
                            const float* rstd, std::int64_t first, std::int64_t rows, float* sums) {
  HWY_DYNAMIC_DISPATCH(LayerNormWeight)(dy, x, mean, rstd, first, rows, sums);
}
void softmax_rows(const ConstView& x, const View& y, std::int64_t first, std::int64_t rows) {
  HWY_DYNAMIC_DISPATCH(Softmax)(x, y, first, rows);
}
void softmax_backward_rows(const ConstView& y, const ConstView& dy, const View& dx,
                           std::int64_t first, std::int64_t rows) {
  HWY_DYNAMIC_DISPATCH(SoftmaxBackward)(y, dy, dx, first, rows);
}

}  // namespace shoal::kernels
#endif
