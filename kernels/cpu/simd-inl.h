// Loads and stores of f32, bf16 and f16 as f32 vectors, for code compiled once per target. Include
// it after hwy/foreach_target.h and hwy/highway.h; the include guard admits it once per target.
//
// Rounding is to nearest, ties to even, NaN kept: exactly as shoal::bfloat16 and shoal::float16.
// (Highway 1.0.3's own demotion to bfloat16 truncates.)
#include <cstring>

#include "hwy/highway.h"

#include "shoal/runtime/tensor/dtype.h"

// NOLINTNEXTLINE
#if defined(SHOAL_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHOAL_KERNELS_CPU_SIMD_INL_H_
#undef SHOAL_KERNELS_CPU_SIMD_INL_H_
#else
#define SHOAL_KERNELS_CPU_SIMD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

inline constexpr FloatTag kFloat{};
HWY_INLINE std::int64_t FloatLanes() { return static_cast<std::int64_t>(hn::Lanes(kFloat)); }

// The 16 bits of the nearest bfloat16, in the high half of each lane; the low half is arbitrary.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<FloatTag>> RoundedToBFloat16(FloatVec value) {
  const hn::RebindToUnsigned<FloatTag> du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto nan = hn::Or(bits, hn::Set(du, 0x400000));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), nan, rounded);
}
// The same 16 bits in the low half; the high half is 0.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<FloatTag>> BFloat16Bits(FloatVec value) {
  return hn::ShiftRight<16>(RoundedToBFloat16(value));
}

HWY_INLINE FloatVec LoadFloats(const float* from) { return hn::LoadU(kFloat, from); }
HWY_INLINE FloatVec LoadFloats(const bfloat16* from) {
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<std::uint16_t, FloatTag> dh;
  const auto bits = hn::LoadU(dh, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(kFloat, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}
HWY_INLINE FloatVec LoadFloats(const float16* from) {
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  return hn::PromoteTo(kFloat, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  // Without F16C, Highway's emulation handles neither infinity nor NaN.
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::Rebind<std::uint16_t, FloatTag> dh;
  const auto bits = hn::PromoteTo(du, hn::LoadU(dh, reinterpret_cast<const std::uint16_t*>(from)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  // 2^112 shifts the exponent's bias, subnormals included; the largest exponent means inf or NaN.
  const auto as_float = hn::BitCast(kFloat, magnitude);
  const auto scaled = hn::BitCast(du, hn::Mul(as_float, hn::Set(kFloat, 0x1p112f)));
  const auto special = hn::RebindMask(du, hn::Ge(as_float, hn::Set(kFloat, 0x1p-96f)));
  const auto wide = hn::Or(magnitude, hn::Set(du, 0x7f800000u));
  return hn::BitCast(kFloat, hn::Or(sign, hn::IfThenElse(special, wide, scaled)));
#endif
}

HWY_INLINE void StoreFloats(FloatVec value, float* to) { hn::StoreU(value, kFloat, to); }
HWY_INLINE void StoreFloats(FloatVec value, bfloat16* to) {
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<std::uint16_t, FloatTag> dh;
  // Lanes hold at most 0xffff, so the saturating demotion changes nothing.
  hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, BFloat16Bits(value))), dh,
             reinterpret_cast<std::uint16_t*>(to));
}
HWY_INLINE void StoreFloats(FloatVec value, float16* to) {
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  hn::StoreU(hn::DemoteTo(dh, value), dh, reinterpret_cast<hwy::float16_t*>(to));
#else
  // Without F16C, Highway's emulation truncates. Copied as bytes: `to` may be unaligned.
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(value, kFloat, lanes);
  HWY_ALIGN float16 halves[HWY_MAX_BYTES / sizeof(float)];
  for (std::int64_t i = 0; i < FloatLanes(); ++i) halves[i] = float16(lanes[i]);
  std::memcpy(static_cast<void*>(to), halves,
              static_cast<std::size_t>(FloatLanes()) * sizeof(float16));
#endif
}

// Stores two consecutive vectors. bf16: stores the high halves of both at once, without a shift.
template <typename T>
HWY_INLINE void StoreTwo(FloatVec first, FloatVec second, T* to) {
  StoreFloats(first, to);
  StoreFloats(second, to + FloatLanes());
}
#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void StoreTwo(FloatVec first, FloatVec second, bfloat16* to) {
  const hn::ScalableTag<std::uint16_t> dh;
  hn::StoreU(hn::ConcatOdd(dh, hn::BitCast(dh, RoundedToBFloat16(second)),
                           hn::BitCast(dh, RoundedToBFloat16(first))),
             dh, reinterpret_cast<std::uint16_t*>(to));
}
#endif

// Converts two vectors to 32 bf16, the low one first, in one instruction. It needs pairs of bf16
// (the caller checks has_bf16_pairs()). Highway 1.0.3 lacks it, and a function with its own target
// attribute could not be inlined. Subnormals become 0.
#if HWY_TARGET <= HWY_AVX3
using BF16Vec = hn::Vec<hn::ScalableTag<std::uint16_t>>;
HWY_INLINE BF16Vec TwoAsBFloat16(FloatVec low, FloatVec high) {
  BF16Vec both;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both.raw) : "v"(high.raw), "v"(low.raw));
  return both;
}
HWY_INLINE void StoreTwoByInstruction(FloatVec first, FloatVec second, bfloat16* to) {
  hn::StoreU(TwoAsBFloat16(first, second), hn::ScalableTag<std::uint16_t>(),
             reinterpret_cast<std::uint16_t*>(to));
}
#endif

// Loads the first `count` < Lanes elements; lanes beyond are 0.
template <typename T>
HWY_INLINE FloatVec LoadSomeFloats(const T* from, std::int64_t count) {
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(float)] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = from[i];
  return LoadFloats(lanes);
}
template <typename T>
HWY_INLINE void StoreSomeFloats(FloatVec value, T* to, std::int64_t count) {
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(float)];
  StoreFloats(value, lanes);
  for (std::int64_t i = 0; i < count; ++i) to[i] = lanes[i];
}
#if HWY_TARGET <= HWY_AVX2
// Below AVX2, Highway's masked load needs an aligned address and reads past the end.
HWY_INLINE FloatVec LoadSomeFloats(const float* from, std::int64_t count) {
  return hn::MaskedLoad(hn::FirstN(kFloat, static_cast<std::size_t>(count)), kFloat, from);
}
HWY_INLINE void StoreSomeFloats(FloatVec value, float* to, std::int64_t count) {
  hn::BlendedStore(value, hn::FirstN(kFloat, static_cast<std::size_t>(count)), kFloat, to);
}
#endif

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
