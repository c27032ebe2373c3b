// The part of CUDA's f16 that Shoal uses (../README.md). Conversions round to nearest even. Every
// NaN becomes 0x7fff, or 0x7fffffff in f32, as in hardware.
#pragma once

#include <bit>
#include <cstdint>

#include "vector_types.h"

struct __align__(2) __half {
  std::uint16_t bits;
};
struct __align__(4) __half2 {
  __half x, y;
};

inline __half __float2half_rn(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value), size = bits & 0x7fffffffu;
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  std::uint32_t made = 0;
  if (size > 0x7f800000u) return {0x7fff};
  if (size >= 0x477ff000u) {  // from 65520 on: the tie above the largest value rounds to infinity
    made = 0x7c00u;
  } else if (size < 0x38800000u) {  // below 2^-14 the unit is that of floats from 0.5 on
    made = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
  } else {
    made = ((size + 0xfffu + (size >> 13 & 1u)) >> 13) - (112u << 10);
  }
  return {static_cast<std::uint16_t>(sign | made)};
}
inline float __half2float(__half value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16,
                      exponent = value.bits >> 10 & 0x1fu, fraction = value.bits & 0x3ffu;
  if (exponent == 0x1fu)
    return std::bit_cast<float>(fraction != 0 ? 0x7fffffffu : sign | 0x7f800000u);
  if (exponent == 0) {
    const float size = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -size : size;
  }
  return std::bit_cast<float>(sign | (exponent + 112u) << 23 | fraction << 13);
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline unsigned short __half_as_ushort(__half value) { return value.bits; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
