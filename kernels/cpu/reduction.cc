#include "shoal/kernels/reduction.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/reduction.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include <algorithm>
#include <cstring>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/cpu/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

// How elements of T are held in registers: 16-bit floats as f32, anything else as it is. Addresses
// are bytes, since nothing is aligned.
template <class T>
struct Lanes {
  using Tag = hn::ScalableTag<T>;
  using V = hn::Vec<Tag>;
  static V load(const std::byte* from) {
    return hn::LoadU(Tag(), reinterpret_cast<const T*>(from));
  }
  static void store(V value, std::byte* to) { hn::StoreU(value, Tag(), reinterpret_cast<T*>(to)); }
};
struct HalfLanes {
  using Tag = FloatTag;
  using V = FloatVec;
};
template <>
struct Lanes<bfloat16> : HalfLanes {
  static V load(const std::byte* from) {
    return LoadFloats(reinterpret_cast<const bfloat16*>(from));
  }
  static void store(V value, std::byte* to) { StoreFloats(value, reinterpret_cast<bfloat16*>(to)); }
};
template <>
struct Lanes<float16> : HalfLanes {
  static V load(const std::byte* from) {
    return LoadFloats(reinterpret_cast<const float16*>(from));
  }
  static void store(V value, std::byte* to) { StoreFloats(value, reinterpret_cast<float16*>(to)); }
};

struct Sum {
  template <class D, class V>
  static HWY_INLINE V apply(D, V a, V b) {
    return hn::Add(a, b);
  }
};

// Highway has no products of 8- and 64-bit integers: those go lane by lane, in unsigned arithmetic,
// where wrapping is defined.
struct Product {
  template <class D, class V>
  static HWY_INLINE V apply(D d, V a, V b) {
    using T = hn::TFromD<D>;
    if constexpr (std::is_floating_point_v<T> || sizeof(T) == 4) {
      return hn::Mul(a, b);
    } else {
      HWY_ALIGN T x[HWY_MAX_BYTES / sizeof(T)], y[HWY_MAX_BYTES / sizeof(T)];
      hn::Store(a, d, x);
      hn::Store(b, d, y);
      for (std::size_t i = 0; i < hn::Lanes(d); ++i)
        x[i] = static_cast<T>(static_cast<std::uint64_t>(x[i]) * static_cast<std::uint64_t>(y[i]));
      return hn::Load(d, x);
    }
  }
};

template <bool smallest>
struct Extreme {
  template <class D, class V>
  static HWY_INLINE V apply(D, V a, V b) {
    const V chosen = smallest ? hn::Min(a, b) : hn::Max(a, b);
    if constexpr (std::is_floating_point_v<hn::TFromD<D>>)
      return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, chosen));
    else
      return chosen;
  }
};

// One vector of the result: the sources folded in order.
template <class T, class Op>
HWY_INLINE typename Lanes<T>::V fold(std::span<const void* const> sources, std::int64_t offset) {
  using L = Lanes<T>;
  auto value = L::load(static_cast<const std::byte*>(sources[0]) + offset);
  for (std::size_t s = 1; s < sources.size(); ++s)
    value = Op::apply(typename L::Tag(), value,
                      L::load(static_cast<const std::byte*>(sources[s]) + offset));
  return value;
}

template <class T, class Op>
HWY_INLINE void reduce_typed(std::span<const void* const> sources, std::byte* destination,
                             std::int64_t count) {
  using L = Lanes<T>;
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(typename L::Tag()));
  const std::int64_t step = lanes * kSize, bytes = count * kSize;
  std::int64_t at = 0;
  if (sources.size() == 2) {  // what a ring does: worth its own loop
    const auto* a = static_cast<const std::byte*>(sources[0]);
    const auto* b = static_cast<const std::byte*>(sources[1]);
    const auto pair = [&](std::int64_t offset) HWY_ATTR {
      return Op::apply(typename L::Tag(), L::load(a + offset), L::load(b + offset));
    };
    for (; at + 2 * step <= bytes; at += 2 * step) {
      const auto v0 = pair(at), v1 = pair(at + step);
      L::store(v0, destination + at);
      L::store(v1, destination + at + step);
    }
  }
  for (; at + 4 * step <= bytes; at += 4 * step) {
    const auto v0 = fold<T, Op>(sources, at), v1 = fold<T, Op>(sources, at + step);
    const auto v2 = fold<T, Op>(sources, at + 2 * step), v3 = fold<T, Op>(sources, at + 3 * step);
    L::store(v0, destination + at);
    L::store(v1, destination + at + step);
    L::store(v2, destination + at + 2 * step);
    L::store(v3, destination + at + 3 * step);
  }
  for (; at + step <= bytes; at += step) L::store(fold<T, Op>(sources, at), destination + at);
  if (at == bytes) return;
  HWY_ALIGN std::byte lane_bytes[2][HWY_MAX_BYTES] = {};
  const auto rest = static_cast<std::size_t>(bytes - at);
  const auto load_rest = [&](const void* source) HWY_ATTR {
    std::memcpy(lane_bytes[0], static_cast<const std::byte*>(source) + at, rest);
    return L::load(lane_bytes[0]);
  };
  auto value = load_rest(sources[0]);
  for (std::size_t s = 1; s < sources.size(); ++s)
    value = Op::apply(typename L::Tag(), value, load_rest(sources[s]));
  L::store(value, lane_bytes[1]);
  std::memcpy(destination + at, lane_bytes[1], rest);
}

template <class T>
HWY_INLINE void reduce_operation(Reduce operation, std::span<const void* const> sources,
                                 std::byte* destination, std::int64_t count) {
  switch (operation) {
    case Reduce::sum:
      return reduce_typed<T, Sum>(sources, destination, count);
    case Reduce::prod:
      return reduce_typed<T, Product>(sources, destination, count);
    case Reduce::min:
      return reduce_typed<T, Extreme<true>>(sources, destination, count);
    case Reduce::max:
      return reduce_typed<T, Extreme<false>>(sources, destination, count);
  }
}

void ReduceAll(Reduce operation, DType dtype, std::span<const void* const> sources,
               void* destination, std::int64_t count) {
  auto* to = static_cast<std::byte*>(destination);
  switch (dtype) {
    case DType::f32:
      return reduce_operation<float>(operation, sources, to, count);
    case DType::bf16:
      return reduce_operation<bfloat16>(operation, sources, to, count);
    case DType::f16:
      return reduce_operation<float16>(operation, sources, to, count);
    case DType::f64:
      return reduce_operation<double>(operation, sources, to, count);
    case DType::i64:
      return reduce_operation<std::int64_t>(operation, sources, to, count);
    case DType::i32:
      return reduce_operation<std::int32_t>(operation, sources, to, count);
    case DType::u8:
      return reduce_operation<std::uint8_t>(operation, sources, to, count);
    case DType::i8:
      return reduce_operation<std::int8_t>(operation, sources, to, count);
  }
}

template <class T>
HWY_INLINE void scale_typed(std::byte* x, double factor, std::int64_t count) {
  using L = Lanes<T>;
  const typename L::Tag d;
  const auto by = hn::Set(d, static_cast<hn::TFromD<typename L::Tag>>(factor));
  const auto step = static_cast<std::int64_t>(hn::Lanes(d) * sizeof(T));
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
  std::int64_t at = 0;
  for (; at + step <= bytes; at += step) L::store(hn::Mul(L::load(x + at), by), x + at);
  HWY_ALIGN std::byte lanes[HWY_MAX_BYTES] = {};
  const auto rest = static_cast<std::size_t>(bytes - at);
  std::memcpy(lanes, x + at, rest);
  L::store(hn::Mul(L::load(lanes), by), lanes);
  std::memcpy(x + at, lanes, rest);
}

void ScaleAll(DType dtype, void* x, double factor, std::int64_t count) {
  auto* at = static_cast<std::byte*>(x);
  switch (dtype) {
    case DType::f64:
      return scale_typed<double>(at, factor, count);
    case DType::bf16:
      return scale_typed<bfloat16>(at, factor, count);
    case DType::f16:
      return scale_typed<float16>(at, factor, count);
    default:
      return scale_typed<float>(at, factor, count);
  }
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {
namespace {
HWY_EXPORT(ReduceAll);
HWY_EXPORT(ScaleAll);

class CpuReduction final : public ReductionKernels {
 public:
  void reduce(Reduce operation, DType dtype, std::span<const void* const> sources,
              void* destination, std::int64_t count, Stream) override {
    check::reduce(sources, destination, count);
    if (count > 0) HWY_DYNAMIC_DISPATCH(ReduceAll)(operation, dtype, sources, destination, count);
  }
  void scale(DType dtype, void* x, double factor, std::int64_t count, Stream) override {
    check::scale(dtype, count);
    if (count > 0) HWY_DYNAMIC_DISPATCH(ScaleAll)(dtype, x, factor, count);
  }
};

}  // namespace

std::unique_ptr<ReductionKernels> make_cpu_reduction(const CpuRoom&) {
  return std::make_unique<CpuReduction>();
}

}  // namespace shoal::kernels
#endif
