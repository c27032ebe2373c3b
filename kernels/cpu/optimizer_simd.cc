#include "shoal/kernels/cpu/optimizer_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/optimizer_simd.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include <algorithm>

#include "shoal/kernels/cpu/loops-inl.h"
#include "shoal/kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

HWY_INLINE FloatVec constant(float value) { return hn::Set(kFloat, value); }

// Reads a whole vector, or its first `some` lanes if `whole` is false.
template <bool whole, class T>
HWY_INLINE FloatVec read(const T* from, std::int64_t some) {
  if constexpr (whole)
    return LoadFloats(from);
  else
    return LoadSomeFloats(from, some);
}
template <bool whole, class T>
HWY_INLINE void write(FloatVec value, T* to, std::int64_t some) {
  if constexpr (whole)
    StoreFloats(value, to);
  else
    StoreSomeFloats(value, to, some);
}

// Calls step.template operator()<whole>(i, lanes) over [first, first + count).
template <class Step>
HWY_INLINE void steps(std::int64_t first, std::int64_t count, const Step& step) {
  const std::int64_t lanes = FloatLanes(), end = first + count;
  std::int64_t i = first;
  for (; i + lanes <= end; i += lanes) step.template operator()<true>(i, lanes);
  if (i < end) step.template operator()<false>(i, end - i);
}

// Calls f with a pointer to the parameter's copy, or with a null float* if there is none.
template <class F>
HWY_INLINE void with_parameter(const View& parameter, const F& f) {
  if (!parameter.defined())
    f(static_cast<float*>(nullptr));
  else if (parameter.dtype == DType::bf16)
    f(static_cast<bfloat16*>(parameter.data));
  else
    f(static_cast<float16*>(parameter.data));
}

// An f32 master and its copy, if there is one.
template <class P>
struct Master {
  float* master;
  P* parameter;

  template <bool whole>
  HWY_INLINE FloatVec get(std::int64_t i, std::int64_t some) const {
    return read<whole>(master + i, some);
  }
  template <bool whole>
  HWY_INLINE void put(FloatVec p, std::int64_t i, std::int64_t some) const {
    write<whole>(p, master + i, some);
    if constexpr (!std::is_same_v<P, float>) write<whole>(p, parameter + i, some);
  }
};

// rounded_stochastically() (rounding.h) for each lane.
HWY_INLINE FloatVec rounded(FloatVec value, const std::uint32_t* random) {
  const hn::RebindToUnsigned<FloatTag> du;
  const auto upper = hn::Set(du, 0xffff0000u), infinity = hn::Set(du, 0x7f800000u);
  const auto bits = hn::BitCast(du, value);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto sum = hn::And(hn::Add(magnitude, hn::ShiftRight<16>(hn::LoadU(du, random))), upper);
  const auto finite =
      hn::Or(hn::AndNot(hn::Set(du, 0x7fffffffu), bits), hn::Min(sum, hn::Set(du, 0x7f7f0000u)));
  const auto nan = hn::Or(hn::And(bits, upper), hn::Set(du, 0x00400000u));
  return hn::BitCast(kFloat,
                     hn::IfThenElse(hn::Gt(infinity, magnitude), finite,
                                    hn::IfThenElse(hn::Gt(magnitude, infinity), nan, bits)));
}

// A bf16 parameter without an f32 master. `random`: the bits of element `begin` and its successors.
struct Rounded {
  bfloat16* parameter;
  const std::uint32_t* random;
  std::int64_t begin;

  template <bool whole>
  HWY_INLINE FloatVec get(std::int64_t i, std::int64_t some) const {
    return read<whole>(parameter + i, some);
  }
  template <bool whole>
  HWY_INLINE void put(FloatVec p, std::int64_t i, std::int64_t some) const {
    write<whole>(rounded(p, random + (i - begin)), parameter + i, some);
  }
};

// Random bits are drawn for this many elements at a time.
constexpr std::int64_t kRandomChunk = 1024;

// Calls run(parameters, first, count) over [first, first + count).
template <class Run>
HWY_INLINE void over_parameters(const AdamWArgs& args, std::int64_t first, std::int64_t count,
                                const Run& run) {
  if (!args.rounding) {
    with_parameter(args.parameter, [&](auto* parameter) HWY_ATTR {
      run(Master<std::remove_pointer_t<decltype(parameter)>>{static_cast<float*>(args.master.data),
                                                             parameter},
          first, count);
    });
    return;
  }
  const RoundingPlace& place = *args.rounding;
  const RandomRows rows{RandomKey(place.site(args.state))};
  // Buffers leave room for a whole vector of bits at the end.
  HWY_ALIGN std::uint32_t room[random_room(kRandomChunk)];
  HWY_ALIGN std::uint32_t joined[random_room(kRandomChunk)] = {};
  for (const std::int64_t end = first + count; first < end;) {
    const std::int64_t some = std::min(kRandomChunk, end - first);
    const std::uint32_t* bits = nullptr;
    for (std::int64_t done = 0; done < some;) {
      const std::int64_t run_of = place.consecutive(first + done, some - done);
      bits = rows.row(0, place.element(first + done), static_cast<std::size_t>(run_of), room);
      if (run_of < some) bits = std::copy_n(bits, run_of, joined + done) - run_of - done;
      done += run_of;
    }
    run(Rounded{static_cast<bfloat16*>(args.master.data), bits, first}, first, some);
    first += some;
  }
}

template <class P>
struct AdamWStep {
  P parameter;
  float *m, *v;
  const float* gradient;
  FloatVec scale, decay, one_minus_beta1, beta2, one_minus_beta2, step_size, correction2, epsilon;

  template <bool whole>
  HWY_INLINE void operator()(std::int64_t i, std::int64_t some) const {
    const FloatVec g = hn::Mul(read<whole>(gradient + i, some), scale);
    FloatVec first = read<whole>(m + i, some), second = read<whole>(v + i, some);
    first = hn::MulAdd(one_minus_beta1, hn::Sub(g, first), first);
    second = hn::MulAdd(hn::Mul(one_minus_beta2, g), g, hn::Mul(second, beta2));
    const FloatVec denominator = hn::Add(hn::Div(hn::Sqrt(second), correction2), epsilon);
    const FloatVec p = hn::NegMulAdd(step_size, hn::Div(first, denominator),
                                     hn::Mul(parameter.template get<whole>(i, some), decay));
    write<whole>(first, m + i, some);
    write<whole>(second, v + i, some);
    parameter.template put<whole>(p, i, some);
  }
};

void AdamW(const AdamWArgs& args, const AdamWFactors& f, std::int64_t first, std::int64_t count) {
  over_parameters(args, first, count,
                  [&](const auto& parameter, std::int64_t from, std::int64_t some) HWY_ATTR {
                    const AdamWStep<std::remove_cvref_t<decltype(parameter)>> step{
                        parameter,
                        static_cast<float*>(args.first_moment.data),
                        static_cast<float*>(args.second_moment.data),
                        static_cast<const float*>(args.gradient.data),
                        constant(f.gradient_scale),
                        constant(f.decay),
                        constant(f.one_minus_beta1),
                        constant(f.beta2),
                        constant(f.one_minus_beta2),
                        constant(f.step_size),
                        constant(f.correction2),
                        constant(f.epsilon)};
                    steps(from, some, step);
                  });
}

template <class P>
struct LionStep {
  P parameter;
  float* m;
  const float* gradient;
  FloatVec scale, decay, one_minus_beta1, one_minus_beta2, rate;

  template <bool whole>
  HWY_INLINE void operator()(std::int64_t i, std::int64_t some) const {
    const FloatVec g = hn::Mul(read<whole>(gradient + i, some), scale);
    const FloatVec before = read<whole>(m + i, some), away = hn::Sub(g, before);
    const FloatVec direction = hn::MulAdd(one_minus_beta1, away, before);
    const FloatVec moved =
        hn::IfThenElseZero(hn::Ne(direction, hn::Zero(kFloat)), hn::CopySign(rate, direction));
    const FloatVec p = hn::MulSub(parameter.template get<whole>(i, some), decay, moved);
    write<whole>(hn::MulAdd(one_minus_beta2, away, before), m + i, some);
    parameter.template put<whole>(p, i, some);
  }
};

void Lion(const AdamWArgs& args, const AdamWFactors& f, std::int64_t first, std::int64_t count) {
  over_parameters(args, first, count,
                  [&](const auto& parameter, std::int64_t from, std::int64_t some) HWY_ATTR {
                    const LionStep<std::remove_cvref_t<decltype(parameter)>> step{
                        parameter,
                        static_cast<float*>(args.first_moment.data),
                        static_cast<const float*>(args.gradient.data),
                        constant(f.gradient_scale),
                        constant(f.decay),
                        constant(f.one_minus_beta1),
                        constant(f.one_minus_beta2),
                        constant(f.learning_rate)};
                    steps(from, some, step);
                  });
}

template <class P>
struct SgdStep {
  float *master, *buffer;  // buffer null: no momentum
  const float* gradient;
  P* parameter;
  bool first, nesterov;
  FloatVec scale, weight_decay, momentum, one_minus_dampening, learning_rate;

  template <bool whole>
  HWY_INLINE void operator()(std::int64_t i, std::int64_t some) const {
    FloatVec p = read<whole>(master + i, some);
    FloatVec g = hn::Mul(read<whole>(gradient + i, some), scale);
    g = hn::MulAdd(weight_decay, p, g);
    if (buffer) {
      const FloatVec moved = first ? g
                                   : hn::MulAdd(one_minus_dampening, g,
                                                hn::Mul(momentum, read<whole>(buffer + i, some)));
      write<whole>(moved, buffer + i, some);
      g = nesterov ? hn::MulAdd(momentum, moved, g) : moved;
    }
    p = hn::NegMulAdd(learning_rate, g, p);
    write<whole>(p, master + i, some);
    if constexpr (!std::is_same_v<P, float>) write<whole>(p, parameter + i, some);
  }
};

void Sgd(const SgdArgs& args, const SgdFactors& f, std::int64_t first, std::int64_t count) {
  with_parameter(args.parameter, [&](auto* parameter) HWY_ATTR {
    const SgdStep<std::remove_pointer_t<decltype(parameter)>> step{
        static_cast<float*>(args.master.data),
        args.momentum != 0 ? static_cast<float*>(args.momentum_buffer.data) : nullptr,
        static_cast<const float*>(args.gradient.data),
        parameter,
        f.first,
        args.nesterov,
        constant(f.gradient_scale),
        constant(f.weight_decay),
        constant(f.momentum),
        constant(f.one_minus_dampening),
        constant(f.learning_rate)};
    steps(first, count, step);
  });
}

struct LambFactors {
  FloatVec scale, one_minus_beta1, beta2, one_minus_beta2, inverse1, inverse2, epsilon, decay;

  HWY_INLINE explicit LambFactors(const AdamWFactors& f)
      : scale(constant(f.gradient_scale)),
        one_minus_beta1(constant(f.one_minus_beta1)),
        beta2(constant(f.beta2)),
        one_minus_beta2(constant(f.one_minus_beta2)),
        inverse1(constant(f.inverse_correction1)),
        inverse2(constant(f.inverse_correction2)),
        epsilon(constant(f.epsilon)),
        decay(constant(f.weight_decay)) {}

  HWY_INLINE FloatVec direction(FloatVec first, FloatVec second, FloatVec master) const {
    const FloatVec denominator = hn::Add(hn::Sqrt(hn::Mul(second, inverse2)), epsilon);
    return hn::MulAdd(decay, master, hn::Div(hn::Mul(first, inverse1), denominator));
  }
};

template <class M>
struct LambMomentsStep {
  float *m, *v, *update;  // update: starts at the first element
  const M* master;
  const float* gradient;
  std::int64_t begin;
  LambFactors f;

  template <bool whole>
  HWY_INLINE void operator()(std::int64_t i, std::int64_t some) const {
    const FloatVec g = hn::Mul(read<whole>(gradient + i, some), f.scale);
    FloatVec first = read<whole>(m + i, some), second = read<whole>(v + i, some);
    first = hn::MulAdd(f.one_minus_beta1, hn::Sub(g, first), first);
    second = hn::MulAdd(hn::Mul(f.one_minus_beta2, g), g, hn::Mul(second, f.beta2));
    write<whole>(first, m + i, some);
    write<whole>(second, v + i, some);
    write<whole>(f.direction(first, second, read<whole>(master + i, some)), update + (i - begin),
                 some);
  }
};

void LambMoments(const AdamWArgs& args, const AdamWFactors& f, std::int64_t first,
                 std::int64_t count, float* direction) {
  const auto run = [&](const auto* master) HWY_ATTR {
    const LambMomentsStep<std::remove_cvref_t<decltype(*master)>> step{
        static_cast<float*>(args.first_moment.data),
        static_cast<float*>(args.second_moment.data),
        direction,
        master,
        static_cast<const float*>(args.gradient.data),
        first,
        LambFactors(f)};
    steps(first, count, step);
  };
  if (args.rounding)
    run(static_cast<const bfloat16*>(args.master.data));
  else
    run(static_cast<const float*>(args.master.data));
}

template <class P>
struct LambApplyStep {
  P parameter;
  const float *m, *v;
  FloatVec rate;
  LambFactors f;

  template <bool whole>
  HWY_INLINE void operator()(std::int64_t i, std::int64_t some) const {
    const FloatVec before = parameter.template get<whole>(i, some);
    const FloatVec update = f.direction(read<whole>(m + i, some), read<whole>(v + i, some), before);
    parameter.template put<whole>(hn::NegMulAdd(rate, update, before), i, some);
  }
};

void LambApply(const AdamWArgs& args, const AdamWFactors& f, float rate, std::int64_t first,
               std::int64_t count) {
  over_parameters(args, first, count,
                  [&](const auto& parameter, std::int64_t from, std::int64_t some) HWY_ATTR {
                    const LambApplyStep<std::remove_cvref_t<decltype(parameter)>> step{
                        parameter, static_cast<const float*>(args.first_moment.data),
                        static_cast<const float*>(args.second_moment.data), constant(rate),
                        LambFactors(f)};
                    steps(from, some, step);
                  });
}

// Squares of f32 are exact in f64 and cannot overflow.
HWY_INLINE double sum_of_squares_f32(const float* x, std::int64_t count) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto v0 = hn::PromoteTo(d, hn::LoadU(df, x + i));
    const auto v1 = hn::PromoteTo(d, hn::LoadU(df, x + i + lanes));
    const auto v2 = hn::PromoteTo(d, hn::LoadU(df, x + i + 2 * lanes));
    const auto v3 = hn::PromoteTo(d, hn::LoadU(df, x + i + 3 * lanes));
    sum0 = hn::MulAdd(v0, v0, sum0);
    sum1 = hn::MulAdd(v1, v1, sum1);
    sum2 = hn::MulAdd(v2, v2, sum2);
    sum3 = hn::MulAdd(v3, v3, sum3);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

double FactoredSums(const AdamWArgs& args, std::int64_t first, std::int64_t count,
                    double* columns) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float scale = args.state->gradient_scale;
  const float* const gradient = static_cast<const float*>(args.gradient.data) + first;
  auto sums = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto g = hn::PromoteTo(d, hn::Mul(hn::LoadU(df, gradient + i), hn::Set(df, scale)));
    const auto square = hn::Mul(g, g);
    hn::StoreU(hn::Add(hn::LoadU(d, columns + i), square), d, columns + i);
    sums = hn::Add(sums, square);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < count; ++i) {
    const double g = gradient[i] * scale;
    columns[i] += g * g;
    sum += g * g;
  }
  return sum;
}

// Adafactor's u.
struct AdafactorDirection {
  const float *gradient, *moment;
  const float* columns;  // from element `begin` on; null: a vector
  std::int64_t begin;
  FloatVec scale, row;

  HWY_INLINE AdafactorDirection(const AdamWArgs& args, const AdafactorFactors& f, float row_factor,
                                const float* column_factors, std::int64_t first)
      : gradient(static_cast<const float*>(args.gradient.data)),
        moment(static_cast<const float*>(args.first_moment.data)),
        columns(column_factors),
        begin(first),
        scale(constant(f.gradient_scale)),
        row(constant(row_factor)) {}

  template <bool whole>
  HWY_INLINE FloatVec get(std::int64_t i, std::int64_t some) const {
    const FloatVec g = hn::Mul(read<whole>(gradient + i, some), scale);
    if (columns != nullptr)
      return hn::Mul(hn::Mul(row, read<whole>(columns + (i - begin), some)), g);
    return hn::Div(g, hn::Sqrt(read<whole>(moment + i, some)));
  }
};

// A step of a vector's second moment; writes u to `wide`, from element `begin` on.
struct AdafactorMomentsStep {
  AdafactorDirection u;
  float *v, *wide;
  std::int64_t begin;
  FloatVec kept, added, epsilon;

  template <bool whole>
  HWY_INLINE void operator()(std::int64_t i, std::int64_t some) const {
    if (u.columns == nullptr) {
      const FloatVec g = hn::Mul(read<whole>(u.gradient + i, some), u.scale);
      const FloatVec q = hn::MulAdd(g, g, epsilon);
      write<whole>(hn::MulAdd(added, q, hn::Mul(kept, read<whole>(v + i, some))), v + i, some);
    }
    write<whole>(u.template get<whole>(i, some), wide + (i - begin), some);
  }
};

double AdafactorMoments(const AdamWArgs& args, const AdafactorFactors& f, float row,
                        const float* columns, std::int64_t first, std::int64_t count) {
  constexpr std::int64_t kChunk = 1024;
  HWY_ALIGN float wide[kChunk];
  double sum = 0;
  for (std::int64_t from = first; from < first + count; from += kChunk) {
    const std::int64_t some = std::min(kChunk, first + count - from);
    const AdafactorMomentsStep step{AdafactorDirection(args, f, row, columns, first),
                                    static_cast<float*>(args.first_moment.data),
                                    wide,
                                    from,
                                    constant(static_cast<float>(f.kept)),
                                    constant(static_cast<float>(1 - f.kept)),
                                    constant(f.epsilon)};
    steps(from, some, step);
    sum += sum_of_squares_f32(wide, some);
  }
  return sum;
}

template <class P>
struct AdafactorApplyStep {
  P parameter;
  AdafactorDirection u;
  FloatVec rate, decay;

  template <bool whole>
  HWY_INLINE void operator()(std::int64_t i, std::int64_t some) const {
    const FloatVec direction = u.template get<whole>(i, some);
    const FloatVec p = hn::Mul(parameter.template get<whole>(i, some), decay);
    parameter.template put<whole>(hn::NegMulAdd(rate, direction, p), i, some);
  }
};

void AdafactorApply(const AdamWArgs& args, const AdafactorFactors& f, float rate, float row,
                    const float* columns, std::int64_t first, std::int64_t count) {
  over_parameters(args, first, count,
                  [&](const auto& parameter, std::int64_t from, std::int64_t some) HWY_ATTR {
                    const AdafactorApplyStep<std::remove_cvref_t<decltype(parameter)>> step{
                        parameter, AdafactorDirection(args, f, row, columns, first), constant(rate),
                        constant(f.decay)};
                    steps(from, some, step);
                  });
}

double SumOfSquares(const ConstView& x, std::int64_t first, std::int64_t count) {
  double sum = 0;
  with_float(x.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const T* from = static_cast<const T*>(x.data) + first;
    if constexpr (std::is_same_v<T, float>) {
      sum = sum_of_squares_f32(from, count);
    } else {
      constexpr std::int64_t kChunk = 1024;
      HWY_ALIGN float wide[kChunk];
      for (std::int64_t i = 0; i < count; i += kChunk) {
        const std::int64_t some = std::min(kChunk, count - i);
        map(some, [](FloatVec v) HWY_ATTR { return v; }, static_cast<float*>(wide), from + i);
        sum += sum_of_squares_f32(wide, some);
      }
    }
  });
  return sum;
}

// The bits of the largest magnitude, as an integer, show whether any element is inf or NaN.
bool NonFinite(const ConstView& x, std::int64_t first, std::int64_t count) {
  const hn::RebindToSigned<FloatTag> di;
  auto largest = hn::Zero(di);
  with_float(x.dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for_each(
        count,
        [&](FloatVec v) HWY_ATTR { largest = hn::Max(largest, hn::BitCast(di, hn::Abs(v))); },
        static_cast<const T*>(x.data) + first);
  });
  return hn::GetLane(hn::MaxOfLanes(di, largest)) >= 0x7f800000;
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {
HWY_EXPORT(AdamW);
HWY_EXPORT(Lion);
HWY_EXPORT(Sgd);
HWY_EXPORT(LambMoments);
HWY_EXPORT(LambApply);
HWY_EXPORT(FactoredSums);
HWY_EXPORT(AdafactorMoments);
HWY_EXPORT(AdafactorApply);
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(NonFinite);

void adamw_range(const AdamWArgs& args, const AdamWFactors& factors, std::int64_t first,
                 std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(AdamW)(args, factors, first, count);
}
void lion_range(const AdamWArgs& args, const AdamWFactors& factors, std::int64_t first,
                std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Lion)(args, factors, first, count);
}
void sgd_range(const SgdArgs& args, const SgdFactors& factors, std::int64_t first,
               std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Sgd)(args, factors, first, count);
}
void lamb_moments_range(const AdamWArgs& args, const AdamWFactors& factors, std::int64_t first,
                        std::int64_t count, float* direction) {
  HWY_DYNAMIC_DISPATCH(LambMoments)(args, factors, first, count, direction);
}
void lamb_apply_range(const AdamWArgs& args, const AdamWFactors& factors, float rate,
                      std::int64_t first, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(LambApply)(args, factors, rate, first, count);
}
double factored_sums_range(const AdamWArgs& args, std::int64_t first, std::int64_t count,
                           double* columns) {
  return HWY_DYNAMIC_DISPATCH(FactoredSums)(args, first, count, columns);
}
double adafactor_moments_range(const AdamWArgs& args, const AdafactorFactors& factors, float row,
                               const float* columns, std::int64_t first, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(AdafactorMoments)(args, factors, row, columns, first, count);
}
void adafactor_apply_range(const AdamWArgs& args, const AdafactorFactors& factors, float rate,
                           float row, const float* columns, std::int64_t first,
                           std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(AdafactorApply)(args, factors, rate, row, columns, first, count);
}
double sum_of_squares_range(const ConstView& x, std::int64_t first, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(x, first, count);
}
bool non_finite_range(const ConstView& x, std::int64_t first, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(NonFinite)(x, first, count);
}

}  // namespace shoal::kernels
#endif
