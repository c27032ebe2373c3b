// Philox 4x32-10 on vectors: the bits that random_bits() gives one at a time (random.h).
#if defined(SHOAL_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHOAL_KERNELS_CPU_PHILOX_INL_H_
#undef SHOAL_KERNELS_CPU_PHILOX_INL_H_
#else
#define SHOAL_KERNELS_CPU_PHILOX_INL_H_
#endif

#include <algorithm>

#include "shoal/kernels/cpu/random_bits.h"
#include "shoal/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

// Room that random_row() needs for `count` elements: whole vectors of blocks of four.
constexpr std::size_t random_room(std::size_t count) {
  return count + 8 + 4 * (HWY_MAX_BYTES / sizeof(std::uint64_t));
}

// Bits of the elements [first, first + count) of one sample, written to `room` (random_room(count)
// words); returns where the first one is. One 64-bit lane computes one block of four elements: its
// counter words stand in the lower halves, which is all that a widening multiply reads.
HWY_INLINE const std::uint32_t* random_row(const RandomKey& key, std::uint32_t sample,
                                           std::uint64_t first, std::size_t count,
                                           std::uint32_t* HWY_RESTRICT room) {
#if HWY_TARGET == HWY_SCALAR
  const std::uint64_t seed = key.key0 | std::uint64_t{key.key1} << 32;
  for (std::uint64_t block = first / 4; block < (first + count + 3) / 4; ++block) {
    const auto words = philox(
        seed, {static_cast<std::uint32_t>(block),
               sample << 8 | static_cast<std::uint32_t>(block >> 32 & 0xff), key.site, key.step});
    std::copy(words.begin(), words.end(), room + 4 * (block - first / 4));
  }
#else
  const hn::ScalableTag<std::uint64_t> d;
  using V = hn::Vec<decltype(d)>;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  const std::size_t lanes = hn::Lanes(d);
  const V low = hn::Set(d, 0xffffffffull);
  const auto multiplier0 = hn::BitCast(d32, hn::Set(d, 0xD2511F53ull));
  const auto multiplier1 = hn::BitCast(d32, hn::Set(d, 0xCD9E8D57ull));
  const std::uint64_t first_block = first / 4, end_block = (first + count + 3) / 4;
  auto* out = reinterpret_cast<std::uint64_t*>(room);
  for (std::uint64_t block = first_block; block < end_block; block += lanes) {
    V c0 = hn::Iota(d, block);
    V c1 = hn::Or(hn::And(hn::ShiftRight<32>(c0), hn::Set(d, 0xffull)),
                  hn::Set(d, std::uint64_t{sample << 8}));
    V c2 = hn::Set(d, std::uint64_t{key.site});
    V c3 = hn::Set(d, std::uint64_t{key.step});
    std::uint32_t key0 = key.key0, key1 = key.key1;
    for (int round = 0; round < 10; ++round) {
      const V product0 = hn::MulEven(multiplier0, hn::BitCast(d32, c0));
      const V product1 = hn::MulEven(multiplier1, hn::BitCast(d32, c2));
      c0 = hn::Xor(hn::ShiftRight<32>(product1), hn::Xor(c1, hn::Set(d, std::uint64_t{key0})));
      c2 = hn::Xor(hn::ShiftRight<32>(product0), hn::Xor(c3, hn::Set(d, std::uint64_t{key1})));
      c1 = product1;
      c3 = product0;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    hn::StoreInterleaved2(hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1)),
                          hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3)), d, out);
    out += 2 * lanes;
  }
#endif
  return room + first % 4;
}

// x * scale where the element is kept, 0 where it is dropped.
HWY_INLINE FloatVec drop(FloatVec x, const std::uint32_t* bits, std::uint32_t threshold,
                         FloatVec scale) {
  const hn::RebindToUnsigned<FloatTag> du;
  const auto dropped = hn::Gt(hn::Set(du, threshold), hn::LoadU(du, bits));
  return hn::IfThenZeroElse(hn::RebindMask(kFloat, dropped), hn::Mul(x, scale));
}

// out = dropout(x), plus residual if asked. The bits of a partial vector are read whole:
// random_room leaves space.
template <class T, bool with_residual>
HWY_INLINE void drop_range(const std::uint32_t* bits, std::uint32_t threshold, float scale,
                           const T* x, const T* residual, T* out, std::int64_t count) {
  const FloatVec by = hn::Set(kFloat, scale);
  const std::int64_t lanes = FloatLanes();
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    FloatVec value = drop(LoadFloats(x + i), bits + i, threshold, by);
    if constexpr (with_residual) value = hn::Add(LoadFloats(residual + i), value);
    StoreFloats(value, out + i);
  }
  if (i < count) {
    FloatVec value = drop(LoadSomeFloats(x + i, count - i), bits + i, threshold, by);
    if constexpr (with_residual) value = hn::Add(LoadSomeFloats(residual + i, count - i), value);
    StoreSomeFloats(value, out + i, count - i);
  }
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
