// GELU, SiLU and their derivatives in f32, by the CPU's formulas (kernels/cpu/math-inl.h). They are
// within a few units in the last place far into the negative tail, where 1 + erf and 1 + tanh would
// cancel.
#pragma once

namespace shoal::kernels {
#ifdef __CUDACC__

// c + x (rest[0] + x (rest[1] + ...))
__device__ __forceinline__ float horner(float, float c) { return c; }
template <class... Rest>
__device__ __forceinline__ float horner(float x, float c, Rest... rest) {
  return fmaf(x, horner(x, rest...), c);
}

// Keeps NaN, unlike fmaxf and fminf.
__device__ __forceinline__ float at_least(float bound, float x) { return x < bound ? bound : x; }
__device__ __forceinline__ float at_most(float bound, float x) { return x > bound ? bound : x; }

// e^(-x^2 / 2) for |x| <= 13, in t = -2 r after Cody and Waite's range reduction.
__device__ __forceinline__ float gaussian(float x) {
  const float square = x * x;
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
  constexpr float kWhole = 12582912.0f;
  const float shifted = fmaf(square, -0.5f * 1.44269504088896341f, kWhole);
  const float n = shifted - kWhole;
  float t = fmaf(n, 2 * 0.693359375f, square);
  t = fmaf(n, 2 * -2.12194440e-4f, t);
  // Adds back the rounding error of x * x. Otherwise the relative error of e^(-x^2 / 2) would be
  // x^2 / 2 times that of x * x.
  t += fmaf(x, x, -square);
  const float value =
      horner(t, 1.0f, -0.5f, 0.1249999850988388f, -0.020833037793636322f, 0.0026042505633085966f,
             -0.00026169547345489264f, 2.1630528863170184e-05f);
  // times 2^n
  return __uint_as_float(__float_as_uint(value) + (__float_as_uint(shifted) << 23));
}

// Tail 1 - Phi(x) of the normal distribution for 0 <= x <= 13; density = e^(-x^2 / 2).
__device__ __forceinline__ float normal_tail(float x, float& density) {
  density = gaussian(x);
  const float s = __fdividef(1.0f, fmaf(x, 0.212132034355964f, 1.0f));
  return density * s *
         horner(s, 0.08459400105574759f, 0.08535763739130917f, 0.07416942979858156f,
                0.10746358589712897f, -0.04732656952156991f, 0.2738616373719357f,
                -0.2561403703268091f, 0.24278220793342925f, -0.06476156939256807f);
}

// x * Phi(x) = max(x, 0) - |x| (1 - Phi(|x|))
__device__ __forceinline__ float gelu_erf(float x) {
  float density;
  const float size = at_most(13.0f, fabsf(x));
  return fmaf(-size, normal_tail(size, density), at_least(0.0f, x));
}
// Phi(x) + x * phi(x)
__device__ __forceinline__ float gelu_erf_derivative(float x) {
  float density;
  const float bounded = at_most(13.0f, at_least(-13.0f, x));
  const float tail = normal_tail(fabsf(bounded), density);
  const float phi = bounded < 0 ? tail : 1.0f - tail;
  return fmaf(bounded * 0.398942280401432678f, density, phi);
}

// x/2 (1 + tanh(k (x + 0.044715 x^3))) with k = sqrt(2 / pi), as x * s, s = 1 / (1 + e^-z), z = 2 k
// (...). For |x| <= 10, 1 + e^-z is below 2^126, the limit of __fdividef.
__device__ __forceinline__ float gelu_tanh_exponential(float x, float square) {
  return expf(x * fmaf(square, -0.0713548162726f, -1.59576912160573f));
}
__device__ __forceinline__ float gelu_tanh(float x) {
  const float above = at_least(-10.0f, x);
  const float bounded = at_most(10.0f, above);
  return __fdividef(above, 1.0f + gelu_tanh_exponential(bounded, bounded * bounded));
}
__device__ __forceinline__ float gelu_tanh_derivative(float x) {
  const float bounded = at_most(10.0f, at_least(-10.0f, x));
  const float square = bounded * bounded;
  // s = 1 / (1 + e) and 1 - s = e * s, without cancellation.
  const float e = gelu_tanh_exponential(bounded, square);
  const float s = __fdividef(1.0f, 1.0f + e);
  const float slope = fmaf(square, 0.2140644488178f, 1.59576912160573f);
  return fmaf(e * s * s, bounded * slope, s);
}

// x * s, s = 1 / (1 + e^-x); 0 in f32 below -80.
__device__ __forceinline__ float silu_exponential(float x) {
  return expf(-at_most(80.0f, at_least(-80.0f, x)));
}
__device__ __forceinline__ float silu(float x) {
  return __fdividef(at_least(-80.0f, x), 1.0f + silu_exponential(x));
}
// s * (1 + x * (1 - s)), 1 - s = e * s
__device__ __forceinline__ float silu_derivative(float x) {
  const float e = silu_exponential(x), s = __fdividef(1.0f, 1.0f + e);
  return s * fmaf(at_most(80.0f, at_least(-80.0f, x)), e * s, 1.0f);
}

#endif
}  // namespace shoal::kernels
