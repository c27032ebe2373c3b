#include <algorithm>

#include "shoal/kernels/cpu/ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/dropout_simd.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "shoal/kernels/cpu/loops-inl.h"
#include "shoal/kernels/cpu/math-inl.h"
#include "shoal/kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

// Random bits are drawn for this many elements at a time, so that they stay in L1.
constexpr std::int64_t kRandomChunk = 1024;

void Dropout(DType dtype, const DropoutPlan& plan, const void* x, const void* residual, void* out,
             std::int64_t first_row, std::int64_t rows, std::int64_t columns) {
  HWY_ALIGN std::uint32_t room[random_room(kRandomChunk)];
  const RandomRows random(plan.key);
  with_float(dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (std::int64_t row = first_row; row < first_row + rows; ++row) {
      for (std::int64_t column = 0; column < columns; column += kRandomChunk) {
        const std::int64_t count = std::min(kRandomChunk, columns - column);
        const std::int64_t at = row * columns + column;
        const std::uint32_t* bits = random.row(
            plan.sample(row), plan.first_element(row) + static_cast<std::uint64_t>(column),
            static_cast<std::size_t>(count), room);
        const T* from = static_cast<const T*>(x) + at;
        T* to = static_cast<T*>(out) + at;
        if (residual)
          drop_range<T, true>(bits, plan.threshold, plan.scale, from,
                              static_cast<const T*>(residual) + at, to, count);
        else
          drop_range<T, false>(bits, plan.threshold, plan.scale, from, nullptr, to, count);
      }
    }
  });
}

// Uniform in [0, 1) from the upper 24 bits.
HWY_INLINE FloatVec uniform_lanes(hn::Vec<hn::RebindToUnsigned<FloatTag>> bits) {
  const auto upper = hn::BitCast(IntTag(), hn::ShiftRight<8>(bits));
  return hn::Mul(hn::ConvertTo(kFloat, upper), floats(0x1p-24f));
}

void FillUniform(const RandomKey& key, std::uint32_t sample, std::uint64_t first, float low,
                 float high, float* out, std::int64_t count) {
  HWY_ALIGN std::uint32_t room[random_room(kRandomChunk)];
  const hn::RebindToUnsigned<FloatTag> du;
  const std::int64_t lanes = FloatLanes();
  const RandomRows random(key);
  const FloatVec base = floats(low), width = floats(high - low);
  for (std::int64_t done = 0; done < count; done += kRandomChunk) {
    const std::int64_t some = std::min(kRandomChunk, count - done);
    const std::uint32_t* bits = random.row(sample, first + static_cast<std::uint64_t>(done),
                                           static_cast<std::size_t>(some), room);
    for (std::int64_t i = 0; i < some; i += lanes) {
      const FloatVec value = hn::Add(base, hn::Mul(width, uniform_lanes(hn::LoadU(du, bits + i))));
      if (i + lanes <= some)
        StoreFloats(value, out + done + i);
      else
        StoreSomeFloats(value, out + done + i, some - i);
    }
  }
}

// Standard normal values by Box-Muller (elementwise.h), one pair from each pair of words: `bits`
// [2 * pairs] to `values` [2 * pairs]. Both buffers need room for one more vector.
HWY_INLINE void normal_pairs(const std::uint32_t* bits, std::int64_t pairs, FloatVec mean,
                             FloatVec std, float* values) {
  const hn::RebindToUnsigned<FloatTag> du;
  for (std::int64_t pair = 0; pair < pairs; pair += FloatLanes()) {
    hn::Vec<decltype(du)> word, turn;
    hn::LoadInterleaved2(du, bits + 2 * pair, word, turn);
    // u = (bits + 1/2) / 2^32. The upper and lower halves are converted apart, since f32 cannot
    // hold 32 bits.
    const FloatVec upper = hn::ConvertTo(kFloat, hn::BitCast(IntTag(), hn::ShiftRight<16>(word)));
    const FloatVec lower =
        hn::ConvertTo(kFloat, hn::BitCast(IntTag(), hn::And(word, hn::Set(du, 0xffffu))));
    const FloatVec u = hn::Mul(hn::MulAdd(upper, floats(65536.0f), hn::Add(lower, floats(0.5f))),
                               floats(0x1p-32f));
    const FloatVec radius = hn::Sqrt(hn::Mul(floats(-2.0f), log(u)));
    FloatVec cosine, sine;
    cos_sin_turns(uniform_lanes(turn), cosine, sine);
    hn::StoreInterleaved2(hn::MulAdd(std, hn::Mul(radius, cosine), mean),
                          hn::MulAdd(std, hn::Mul(radius, sine), mean), kFloat, values + 2 * pair);
  }
}

// Computes whole pairs, starting at an even element. At an odd start or end, half of a pair is
// discarded.
void FillNormal(const RandomKey& key, std::uint32_t sample, std::uint64_t first, float mean,
                float std, float* out, std::int64_t count) {
  constexpr std::uint64_t kStep = static_cast<std::uint64_t>(kRandomChunk);
  HWY_ALIGN std::uint32_t room[random_room(kRandomChunk) + HWY_MAX_BYTES];
  HWY_ALIGN float values[kRandomChunk + HWY_MAX_BYTES];
  const RandomRows random(key);
  const std::uint64_t end = first + static_cast<std::uint64_t>(count);
  for (std::uint64_t at = first & ~std::uint64_t{1}; at < end; at += kStep) {
    const std::uint64_t some = std::min(kStep, end - at);
    const std::uint64_t pairs = (some + 1) / 2;
    const std::uint32_t* bits = random.row(sample, at, static_cast<std::size_t>(2 * pairs), room);
    normal_pairs(bits, static_cast<std::int64_t>(pairs), floats(mean), floats(std), values);
    const std::uint64_t from = std::max(at, first);
    std::copy(values + (from - at), values + some, out + (from - first));
  }
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {
HWY_EXPORT(Dropout);
HWY_EXPORT(FillUniform);
HWY_EXPORT(FillNormal);

void dropout_rows(DType dtype, const DropoutPlan& plan, const void* x, const void* residual,
                  void* out, std::int64_t first_row, std::int64_t rows, std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(Dropout)(dtype, plan, x, residual, out, first_row, rows, columns);
}
void fill_uniform_range(const RandomKey& key, std::uint32_t sample, std::uint64_t first_element,
                        float low, float high, float* out, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(FillUniform)(key, sample, first_element, low, high, out, count);
}
void fill_normal_range(const RandomKey& key, std::uint32_t sample, std::uint64_t first_element,
                       float mean, float std, float* out, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(FillNormal)(key, sample, first_element, mean, std, out, count);
}

}  // namespace shoal::kernels
#endif
