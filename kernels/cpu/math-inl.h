// Elementary functions on f32 vectors, each within a few units in the last place of the true value.
// tests/kernels/elementwise_test.cc measures them through the kernels that use them.
#if defined(SHOAL_KERNELS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHOAL_KERNELS_CPU_MATH_INL_H_
#undef SHOAL_KERNELS_CPU_MATH_INL_H_
#else
#define SHOAL_KERNELS_CPU_MATH_INL_H_
#endif

#include "shoal/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

using IntTag = hn::RebindToSigned<FloatTag>;

HWY_INLINE FloatVec floats(float value) { return hn::Set(kFloat, value); }

// c[0] + x (c[1] + x (c[2] + ...))
template <std::size_t n>
HWY_INLINE FloatVec polynomial(FloatVec x, const float (&c)[n]) {
  FloatVec value = floats(c[n - 1]);
  for (std::size_t i = n - 1; i-- > 0;) value = hn::MulAdd(value, x, floats(c[i]));
  return value;
}

// NaN stays NaN. (x86's Max and Min return their second argument if either is NaN.)
HWY_INLINE FloatVec at_least(float bound, FloatVec x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return hn::Max(floats(bound), x);
#else
  return hn::IfThenElse(hn::Lt(x, floats(bound)), floats(bound), x);
#endif
}
HWY_INLINE FloatVec at_most(float bound, FloatVec x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return hn::Min(floats(bound), x);
#else
  return hn::IfThenElse(hn::Gt(x, floats(bound)), floats(bound), x);
#endif
}

// 2^n for n in [-126, 127].
HWY_INLINE FloatVec power_of_two(hn::Vec<IntTag> n) {
  return hn::BitCast(kFloat, hn::ShiftLeft<23>(hn::Add(n, hn::Set(IntTag(), 127))));
}

// e^x = value * 2^n, with the range reduction of Cody and Waite and Cephes' polynomial.
HWY_INLINE FloatVec exp_reduced(FloatVec x, hn::Vec<IntTag>& n) {
  static constexpr float kTail[] = {0.5f,
                                    1.6666665459e-1f,
                                    4.1665795894e-2f,
                                    8.3334519073e-3f,
                                    1.3981999507e-3f,
                                    1.9875691500e-4f};
  n = hn::NearestInt(hn::Mul(x, floats(1.44269504088896341f)));
  const FloatVec whole = hn::ConvertTo(kFloat, n);
  FloatVec r = hn::NegMulAdd(whole, floats(0.693359375f), x);
  r = hn::NegMulAdd(whole, floats(-2.12194440e-4f), r);
  return hn::Add(hn::MulAdd(polynomial(r, kTail), hn::Mul(r, r), r), floats(1.0f));
}

// e^x; 0 below -104, inf above 88.73, subnormals included, NaN kept.
HWY_INLINE FloatVec exp(FloatVec x) {
  hn::Vec<IntTag> n;
  const FloatVec value = exp_reduced(hn::Min(hn::Max(x, floats(-104.0f)), floats(89.0f)), n);
  // Scaled in two factors, since 2^n alone may be infinite or subnormal.
  const auto half = hn::ShiftRight<1>(n);
  const FloatVec scaled =
      hn::Mul(hn::Mul(value, power_of_two(half)), power_of_two(hn::Sub(n, half)));
  return hn::IfThenElse(hn::IsNaN(x), x, scaled);
}

// e^x for x in [-87, 87]: a third cheaper.
HWY_INLINE FloatVec exp_within_87(FloatVec x) {
  hn::Vec<IntTag> n;
  const FloatVec value = exp_reduced(x, n);
  return hn::Mul(value, power_of_two(n));
}

// 2^x for x < 127.5, well within half a unit of bf16 (a minimax fit, relative error 3e-6). It is 0
// at -127 and below, imprecise between -127 and -126, and keeps NaN.
HWY_INLINE FloatVec short_exp2(FloatVec x) {
  static constexpr float kTerms[] = {1.0f, 0.6931241750717163f, 0.24024099111557007f,
                                     0.055906426161527634f, 0.009582852944731712f};
  const FloatVec bounded = at_least(-127.0f, x);
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
  const FloatVec whole = floats(0x1.8p23f);
  const FloatVec shifted = hn::Add(bounded, whole);
  const FloatVec value = polynomial(hn::Sub(bounded, hn::Sub(shifted, whole)), kTerms);
  const IntTag di;
  return hn::BitCast(kFloat,
                     hn::Add(hn::BitCast(di, value), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// ln x for finite positive normal x (Cephes' logf).
HWY_INLINE FloatVec log(FloatVec x) {
  static constexpr float kLog[] = {3.3333331174e-1f,  -2.4999993993e-1f, 2.0000714765e-1f,
                                   -1.6668057665e-1f, 1.4249322787e-1f,  -1.2420140846e-1f,
                                   1.1676998740e-1f,  -1.1514610310e-1f, 7.0376836292e-2f};
  // x = 2^e * m with m in [sqrt(1/2), sqrt(2)), by splitting off the exponent at the bits of
  // sqrt(1/2).
  const auto offset = hn::Set(IntTag(), 0x3f3504f3);
  const auto shifted = hn::Sub(hn::BitCast(IntTag(), x), offset);
  const FloatVec e = hn::ConvertTo(kFloat, hn::ShiftRight<23>(shifted));
  const FloatVec m =
      hn::BitCast(kFloat, hn::Add(hn::And(shifted, hn::Set(IntTag(), 0x007fffff)), offset));
  const FloatVec f = hn::Sub(m, floats(1.0f));
  const FloatVec z = hn::Mul(f, f);
  FloatVec y = hn::Mul(hn::Mul(f, z), polynomial(f, kLog));
  y = hn::MulAdd(e, floats(-2.12194440e-4f), y);
  y = hn::NegMulAdd(floats(0.5f), z, y);
  return hn::MulAdd(e, floats(0.693359375f), hn::Add(f, y));
}

// cos and sin of 2*pi*turns for turns in [0, 1). The reduction to an eighth of a turn is exact.
HWY_INLINE void cos_sin_turns(FloatVec turns, FloatVec& cosine, FloatVec& sine) {
  static constexpr float kSin[] = {-1.6666654611e-1f, 8.3321608736e-3f, -1.9515295891e-4f};
  static constexpr float kCos[] = {4.166664568298827e-2f, -1.388731625493765e-3f,
                                   2.443315711809948e-5f};
  const auto quadrant = hn::NearestInt(hn::Mul(turns, floats(4.0f)));
  const FloatVec rest = hn::NegMulAdd(hn::ConvertTo(kFloat, quadrant), floats(0.25f), turns);
  const FloatVec r = hn::Mul(rest, floats(6.28318530717958648f));
  const FloatVec z = hn::Mul(r, r);
  const FloatVec s = hn::MulAdd(hn::Mul(polynomial(z, kSin), z), r, r);
  const FloatVec c = hn::Add(hn::NegMulAdd(floats(0.5f), z, floats(1.0f)),
                             hn::Mul(polynomial(z, kCos), hn::Mul(z, z)));
  const auto one = hn::Set(IntTag(), 1), two = hn::Set(IntTag(), 2);
  const auto swapped = hn::RebindMask(kFloat, hn::Eq(hn::And(quadrant, one), one));
  const auto sine_sign = hn::ShiftLeft<30>(hn::And(quadrant, two));
  const auto cosine_sign = hn::ShiftLeft<30>(hn::And(hn::Add(quadrant, one), two));
  cosine = hn::Xor(hn::IfThenElse(swapped, s, c), hn::BitCast(kFloat, cosine_sign));
  sine = hn::Xor(hn::IfThenElse(swapped, c, s), hn::BitCast(kFloat, sine_sign));
}

// Precision of a function: within a few units of f32, or well within half a unit of bf16.
enum class Precision { f32, bf16 };

// 1 / x for normal 1 / x. bf16: the instruction's estimate and one Newton step, error 1e-6.
template <Precision precision>
HWY_INLINE FloatVec reciprocal(FloatVec x) {
  if constexpr (precision == Precision::f32) return hn::Div(floats(1.0f), x);
  const FloatVec estimate = hn::ApproximateReciprocal(x);
  return hn::Mul(estimate, hn::NegMulAdd(x, estimate, floats(2.0f)));
}

// e^(-x^2 / 2) for |x| <= 13, by Cody and Waite's range reduction and a minimax fit (error 2e-9,
// relative) in t = -2 r, which saves the halving.
HWY_INLINE FloatVec gaussian(FloatVec x) {
  static constexpr float kExp[] = {1.0f,
                                   -0.5f,
                                   0.1249999850988388f,
                                   -0.020833037793636322f,
                                   0.0026042505633085966f,
                                   -0.00026169547345489264f,
                                   2.1630528863170184e-05f};
  const FloatVec square = hn::Mul(x, x);
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
  const FloatVec whole = floats(0x1.8p23f);
  const FloatVec shifted = hn::MulAdd(square, floats(-0.5f * 1.44269504088896341f), whole);
  const FloatVec n = hn::Sub(shifted, whole);
  FloatVec t = hn::MulAdd(n, floats(2 * 0.693359375f), square);
  t = hn::MulAdd(n, floats(2 * -2.12194440e-4f), t);
  // Adds back the rounding error of x * x, which the exponential multiplies by x^2 / 2.
  t = hn::Add(t, hn::MulSub(x, x, square));
  const FloatVec value = polynomial(t, kExp);
  // times 2^n
  const IntTag di;
  return hn::BitCast(kFloat,
                     hn::Add(hn::BitCast(di, value), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// Tail 1 - Phi(x) of the normal distribution for 0 <= x <= 13, beyond which it is 0 in f32; density
// = e^(-x^2 / 2). With s = 1 / (1 + k x), the tail is density * s * P(s). P is a minimax fit
// (relative error 2e-8), so small tails keep their relative precision.
HWY_INLINE FloatVec normal_tail(FloatVec x, FloatVec& density) {
  static constexpr float kTail[] = {
      0.08459400105574759f, 0.08535763739130917f,  0.07416942979858156f,
      0.10746358589712897f, -0.04732656952156991f, 0.2738616373719357f,
      -0.2561403703268091f, 0.24278220793342925f,  -0.06476156939256807f};
  density = gaussian(x);
  const FloatVec one = floats(1.0f);
  const FloatVec s = hn::Div(one, hn::MulAdd(x, floats(0.212132034355964f), one));
  return hn::Mul(hn::Mul(density, s), polynomial(s, kTail));
}
// The tail for bf16 (relative error 1.3e-4, a thirtieth of bf16's unit). A polynomial gives its
// logarithm, which saves the division.
HWY_INLINE FloatVec short_normal_tail(FloatVec x) {
  static constexpr float kLog2[] = {
      -1.0001674890518188f,    -1.149219036102295f,      -0.46245554089546204f,
      -0.051025163382291794f,  0.00749327102676034f,     -0.0007573304465040565f,
      4.8917609092313796e-05f, -1.8011261317951721e-06f, 2.860421410844083e-08f};
  return short_exp2(polynomial(x, kLog2));
}

// x * Phi(x) = max(x, 0) - |x| (1 - Phi(|x|)).
template <Precision precision>
HWY_INLINE FloatVec gelu_erf(FloatVec x) {
  const FloatVec size = at_most(13.0f, hn::Abs(x));
  FloatVec density, tail;
  if constexpr (precision == Precision::f32)
    tail = normal_tail(size, density);
  else
    tail = short_normal_tail(size);
  return hn::NegMulAdd(size, tail, at_least(0.0f, x));
}
// Phi(x) + x * phi(x). The terms cancel near -0.75, so in f32 both must be precise.
template <Precision precision>
HWY_INLINE FloatVec gelu_erf_derivative(FloatVec x) {
  const FloatVec bounded = at_most(13.0f, at_least(-13.0f, x));
  const FloatVec size = hn::Abs(bounded);
  if constexpr (precision == Precision::f32) {
    FloatVec density;
    const FloatVec tail = normal_tail(size, density);
    const FloatVec phi =
        hn::IfThenElse(hn::Lt(bounded, hn::Zero(kFloat)), tail, hn::Sub(floats(1.0f), tail));
    return hn::MulAdd(hn::Mul(bounded, floats(0.398942280401432678f)), density, phi);
  } else {
    // 1/2 + sign(x) (1/2 + d), d = |x| phi(x) - (1 - Phi(|x|)) = e^(-x^2 / 2) (|x| - root) S(|x|).
    // The factor (|x| - root) puts the zero in its exact place. S is a minimax fit on [0, 6],
    // relative error 7e-5 where d is significant.
    static constexpr float kFit[] = {0.6650309562683105f,    -0.17540568113327026f,
                                     0.09190109372138977f,   -0.03676781430840492f,
                                     0.010317780077457428f,  -0.0018462974112480879f,
                                     0.0001855529990280047f, -7.88861325418111e-06f};
    const FloatVec density =
        short_exp2(hn::Mul(hn::Mul(bounded, bounded), floats(-0.5f * 1.44269504088896341f)));
    const FloatVec rest =
        hn::Mul(hn::Sub(size, floats(0.7517915368080139f)), polynomial(at_most(6.0f, size), kFit));
    const FloatVec half = floats(0.5f);
    const FloatVec away = hn::MulAdd(density, rest, half);
    return hn::Add(half, hn::Xor(away, hn::And(bounded, hn::SignBit(kFloat))));
  }
}

// x/2 (1 + tanh(k (x + 0.044715 x^3))) with k = sqrt(2 / pi), computed as x * s,
// s = 1 / (1 + e^-z), z = 2 k (...). This avoids cancellation when tanh is near -1. For |x| <= 10,
// e^-z is within [e^-87, e^87]; beyond, s is 0 or 1.
template <Precision precision>
HWY_INLINE FloatVec gelu_tanh_exponential(FloatVec x, FloatVec square) {
  constexpr double kUnit = precision == Precision::bf16 ? 1.44269504088896341 : 1;
  const FloatVec inner = hn::MulAdd(square, floats(static_cast<float>(-0.0713548162726 * kUnit)),
                                    floats(static_cast<float>(-1.59576912160573 * kUnit)));
  if constexpr (precision == Precision::bf16) return short_exp2(hn::Mul(x, inner));
  return exp_within_87(hn::Mul(x, inner));
}
template <Precision precision>
HWY_INLINE FloatVec gelu_tanh(FloatVec x) {
  const FloatVec above = at_least(-10.0f, x);
  const FloatVec bounded = at_most(10.0f, above);
  const FloatVec e = gelu_tanh_exponential<precision>(bounded, hn::Mul(bounded, bounded));
  if constexpr (precision == Precision::f32) return hn::Div(above, hn::Add(floats(1.0f), e));
  return hn::Mul(above, reciprocal<precision>(hn::Add(floats(1.0f), e)));
}
// bf16: only the cancellation near -0.75 amplifies the exponential's error of 3e-6. There the
// rounding of x itself is a thousand times larger.
template <Precision precision>
HWY_INLINE FloatVec gelu_tanh_derivative(FloatVec x) {
  const FloatVec bounded = at_most(10.0f, at_least(-10.0f, x));
  const FloatVec square = hn::Mul(bounded, bounded);
  // s = 1 / (1 + e) and 1 - s = e * s, without cancellation.
  const FloatVec e = gelu_tanh_exponential<precision>(bounded, square);
  const FloatVec s = reciprocal<precision>(hn::Add(floats(1.0f), e));
  const FloatVec slope = hn::MulAdd(square, floats(0.2140644488178f), floats(1.59576912160573f));
  return hn::MulAdd(hn::Mul(hn::Mul(e, s), s), hn::Mul(bounded, slope), s);
}

// Near 0 an odd polynomial (Cephes); beyond, 1 - 2 e / (1 + e) with e = e^(-2 |x|); 1 from 10 on.
HWY_INLINE FloatVec tanh_of(FloatVec x) {
  static constexpr float kNear[] = {-3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f,
                                    2.06390887954e-2f, -5.70498872745e-3f};
  const FloatVec size = hn::Abs(x), bounded = at_most(10.0f, size), one = floats(1.0f);
  const FloatVec e = exp_within_87(hn::Mul(floats(-2.0f), bounded));
  const FloatVec far = hn::Sub(one, hn::Div(hn::Add(e, e), hn::Add(one, e)));
  const FloatVec square = hn::Mul(x, x);
  const FloatVec near = hn::MulAdd(hn::Mul(polynomial(square, kNear), square), x, x);
  return hn::IfThenElse(hn::Lt(size, floats(0.625f)), near, hn::CopySign(far, x));
}
// 1 / cosh(x)^2 = 4 e / (1 + e)^2, without cancellation.
HWY_INLINE FloatVec tanh_derivative(FloatVec x) {
  const FloatVec e = exp_within_87(hn::Mul(floats(-2.0f), at_most(43.0f, hn::Abs(x))));
  const FloatVec s = hn::Div(floats(2.0f), hn::Add(floats(1.0f), e));
  return hn::Mul(hn::Mul(e, s), s);
}

// A soft cap: y = cap * tanh(x * factor), factor = scale / cap; and dy/dx / scale, of y and 1 /
// cap.
struct SoftCap {
  FloatVec factor, cap;
  HWY_INLINE FloatVec operator()(FloatVec x) const {
    return hn::Mul(tanh_of(hn::Mul(x, factor)), cap);
  }
};
HWY_INLINE FloatVec soft_cap_slope(FloatVec y, FloatVec over_cap) {
  const FloatVec bent = hn::Mul(y, over_cap);
  return hn::NegMulAdd(bent, bent, floats(1.0f));
}

// x * s, s = 1 / (1 + e^-x). The result is 0 in f32 below -87, and s is 1 beyond 87.
HWY_INLINE FloatVec silu_exponential(FloatVec x) {
  return exp_within_87(hn::Neg(at_most(87.0f, at_least(-87.0f, x))));
}
HWY_INLINE FloatVec silu(FloatVec x) {
  return hn::Div(at_least(-87.0f, x), hn::Add(floats(1.0f), silu_exponential(x)));
}
// s * (1 + x * (1 - s)), 1 - s = e * s without cancellation.
HWY_INLINE FloatVec silu_derivative(FloatVec x) {
  const FloatVec e = silu_exponential(x), one = floats(1.0f);
  const FloatVec s = hn::Div(one, hn::Add(one, e));
  const FloatVec bounded = at_most(87.0f, at_least(-87.0f, x));
  return hn::Mul(s, hn::MulAdd(bounded, hn::Mul(e, s), one));
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
