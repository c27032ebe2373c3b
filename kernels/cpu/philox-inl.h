// Vectorised Philox 4x32-10; gives the same bits as random_bits() (random.h).
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

// Number of vectors of four-element blocks computed at once; limited by the registers.
constexpr std::size_t kRandomVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

// Words of scratch that RandomRows::row() needs for `count` elements.
constexpr std::size_t random_room(std::size_t count) {
  return count + 8 + 4 * kRandomVectors * (HWY_MAX_BYTES / sizeof(std::uint64_t));
}

// The random bits of one operation's elements, row by row.
class RandomRows {
 public:
  explicit RandomRows(const RandomKey& key) : key_(key) {
    for (std::size_t round = 0; round < kRounds; ++round) {
      schedule_[2 * round] = key.key0 + static_cast<std::uint32_t>(round * 0x9E3779B9u);
      schedule_[2 * round + 1] = key.key1 + static_cast<std::uint32_t>(round * 0xBB67AE85u);
    }
  }

  // Writes the bits of elements [first, first + count) of one sample to `room` (random_room(count)
  // words) and returns the address of the first.
  HWY_INLINE const std::uint32_t* row(std::uint32_t sample, std::uint64_t first, std::size_t count,
                                      std::uint32_t* HWY_RESTRICT room) const;

 private:
  static constexpr std::size_t kRounds = 10;
  RandomKey key_;
  // The 32 bits of each round's two keys, ready to be broadcast.
  std::uint64_t schedule_[2 * kRounds] = {};
};

// Each 64-bit lane computes one block of four elements. Each of the four counter words has a vector
// of its own and is in the lower half of its lane: a widening multiply reads only that half.
HWY_INLINE const std::uint32_t* RandomRows::row(std::uint32_t sample, std::uint64_t first,
                                                std::size_t count,
                                                std::uint32_t* HWY_RESTRICT room) const {
#if HWY_TARGET == HWY_SCALAR
  const std::uint64_t seed = key_.key0 | std::uint64_t{key_.key1} << 32;
  for (std::uint64_t block = first / 4; block < (first + count + 3) / 4; ++block) {
    const auto words = philox(
        seed, {static_cast<std::uint32_t>(block),
               sample << 8 | static_cast<std::uint32_t>(block >> 32 & 0xff), key_.site, key_.step});
    std::copy(words.begin(), words.end(), room + 4 * (block - first / 4));
  }
#else
  const hn::ScalableTag<std::uint64_t> d;
  using V = hn::Vec<decltype(d)>;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  const std::size_t lanes = hn::Lanes(d);
  const auto multiplier0 = hn::BitCast(d32, hn::Set(d, 0xD2511F53ull));
  const auto multiplier1 = hn::BitCast(d32, hn::Set(d, 0xCD9E8D57ull));
  // Even lanes compute the vector's first blocks and odd lanes its last, so that interleaving the
  // halves within 128 bits gives the elements' order.
  const V half = hn::ShiftRight<1>(hn::Iota(d, 0));
  const V order = hn::OddEven(hn::Add(half, hn::Set(d, lanes / 2)), half);
  const V sample_word = hn::Set(d, std::uint64_t{sample << 8});
  const V step = hn::Set(d, std::uint64_t{key_.step});
  const V site = hn::Set(d, std::uint64_t{key_.site});
  const std::uint64_t end_block = (first + count + 3) / 4;
  auto* out = reinterpret_cast<std::uint64_t*>(room);
  // Several vectors of blocks take turns, since each round waits for the previous one.
  constexpr std::size_t kAtOnce = kRandomVectors;
  for (std::uint64_t block = first / 4; block < end_block; block += kAtOnce * lanes) {
    V c0[kAtOnce], c1[kAtOnce], c2[kAtOnce], c3[kAtOnce];
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      c0[i] = hn::Add(hn::Set(d, block + i * lanes), order);
      c1[i] = hn::Or(hn::And(hn::ShiftRight<32>(c0[i]), hn::Set(d, 0xffull)), sample_word);
      c2[i] = site;
      c3[i] = step;
    }
#pragma GCC unroll 10
    for (std::size_t round = 0; round < kRounds; ++round) {
      const V key0 = hn::Set(d, schedule_[2 * round]), key1 = hn::Set(d, schedule_[2 * round + 1]);
      for (std::size_t i = 0; i < kAtOnce; ++i) {
        const V product0 = hn::MulEven(multiplier0, hn::BitCast(d32, c0[i]));
        const V product1 = hn::MulEven(multiplier1, hn::BitCast(d32, c2[i]));
        c0[i] = hn::Xor3(hn::ShiftRight<32>(product1), c1[i], key0);
        c2[i] = hn::Xor3(hn::ShiftRight<32>(product0), c3[i], key1);
        c1[i] = product1;
        c3[i] = product0;
      }
    }
    const auto words = [&](V low, V high) HWY_ATTR {
      return hn::BitCast(
          d, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(high)), hn::BitCast(d32, low)));
    };
    for (std::size_t i = 0; i < kAtOnce; ++i, out += 2 * lanes) {
      const V first_two = words(c0[i], c1[i]), last_two = words(c2[i], c3[i]);
      hn::StoreU(hn::InterleaveLower(d, first_two, last_two), d, out);
      hn::StoreU(hn::InterleaveUpper(d, first_two, last_two), d, out + lanes);
    }
  }
#endif
  return room + first % 4;
}

// Mask of the dropped elements.
HWY_INLINE hn::Mask<FloatTag> dropped(const std::uint32_t* bits, std::uint32_t threshold) {
  const hn::RebindToUnsigned<FloatTag> du;
  return hn::RebindMask(kFloat, hn::Gt(hn::Set(du, threshold), hn::LoadU(du, bits)));
}

// x * scale where the element is kept, 0 where it is dropped.
HWY_INLINE FloatVec drop(FloatVec x, const std::uint32_t* bits, std::uint32_t threshold,
                         FloatVec scale) {
  return hn::IfThenZeroElse(dropped(bits, threshold), hn::Mul(x, scale));
}

// out = dropout(x), plus residual if `with_residual`. A partial vector reads a whole vector of
// bits, for which random_room leaves space.
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
