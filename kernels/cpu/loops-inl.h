// Loops over rows and ranges of f32, bf16 and f16 elements as f32 vectors.
#if defined(SHOAL_KERNELS_CPU_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHOAL_KERNELS_CPU_LOOPS_INL_H_
#undef SHOAL_KERNELS_CPU_LOOPS_INL_H_
#else
#define SHOAL_KERNELS_CPU_LOOPS_INL_H_
#endif

#include "shoal/kernels/cpu/simd-inl.h"
#include "shoal/runtime/base/error.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

// out[i] = f(in[i]...), with f on f32 vectors. A value does not depend on its lane, so any split
// over threads gives the same bits. out may be one of the inputs.
template <class F, class Out, class... In>
HWY_INLINE void map(std::int64_t count, const F& f, Out* out, const In*... in) {
  const std::int64_t lanes = FloatLanes();
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const FloatVec first = f(LoadFloats(in + i)...);
    StoreTwo(first, f(LoadFloats(in + i + lanes)...), out + i);
  }
  for (; i + lanes <= count; i += lanes) StoreFloats(f(LoadFloats(in + i)...), out + i);
  if (i < count) StoreSomeFloats(f(LoadSomeFloats(in + i, count - i)...), out + i, count - i);
}

#if HWY_TARGET <= HWY_AVX3
// map() that rounds by StoreTwoByInstruction in every lane, including a partial vector's.
template <class F, class... In>
HWY_INLINE void map_by_instruction(std::int64_t count, const F& f, bfloat16* out, const In*... in) {
  const std::int64_t lanes = FloatLanes();
  std::int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const FloatVec first = f(LoadFloats(in + i)...);
    StoreTwoByInstruction(first, f(LoadFloats(in + i + lanes)...), out + i);
  }
  for (; i < count; i += lanes) {
    const std::int64_t some = HWY_MIN(lanes, count - i);
    const FloatVec last = f(LoadSomeFloats(in + i, some)...);
    HWY_ALIGN bfloat16 both[HWY_MAX_BYTES / sizeof(bfloat16)];
    StoreTwoByInstruction(last, last, both);
    std::memcpy(static_cast<void*>(out + i), both,
                static_cast<std::size_t>(some) * sizeof(bfloat16));
  }
}
#endif

// Calls f(v...) for each vector of the inputs; lanes past the end are 0.
template <class F, class... In>
HWY_INLINE void for_each(std::int64_t count, const F& f, const In*... in) {
  const std::int64_t lanes = FloatLanes();
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) f(LoadFloats(in + i)...);
  if (i < count) f(LoadSomeFloats(in + i, count - i)...);
}

// The sum of f(v...) over all elements. Four running sums hide the adder's latency; the order is
// fixed.
template <class F, class... In>
HWY_INLINE float sum_of(std::int64_t count, const F& f, const In*... in) {
  const std::int64_t lanes = FloatLanes();
  FloatVec sum0 = hn::Zero(kFloat), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    sum0 = hn::Add(sum0, f(LoadFloats(in + i)...));
    sum1 = hn::Add(sum1, f(LoadFloats(in + i + lanes)...));
    sum2 = hn::Add(sum2, f(LoadFloats(in + i + 2 * lanes)...));
    sum3 = hn::Add(sum3, f(LoadFloats(in + i + 3 * lanes)...));
  }
  for (; i + lanes <= count; i += lanes) sum0 = hn::Add(sum0, f(LoadFloats(in + i)...));
  if (i < count) {
    const auto inside = hn::FirstN(kFloat, static_cast<std::size_t>(count - i));
    sum1 = hn::Add(sum1, hn::IfThenElseZero(inside, f(LoadSomeFloats(in + i, count - i)...)));
  }
  return hn::GetLane(hn::SumOfLanes(kFloat, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

// Calls f(T{}) with T = float, bfloat16 or float16.
template <class F>
HWY_INLINE void with_float(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bfloat16{});
    case DType::f16:
      return f(float16{});
    default:
      SHOAL_ASSERT(false);
  }
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
