#include "shoal/kernels/reduction.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/reduction.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include <algorithm>
#include <array>
#include <cstring>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/convert.h"
#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/cpu/instruction_set.h"
#include "shoal/kernels/cpu/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

// How elements of T are held in registers: as f32 for 16-bit floats, otherwise as T. Addresses are
// in bytes, since no alignment is assumed.
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

// Highway cannot multiply 8- and 64-bit integers. They are multiplied one by one, in unsigned
// arithmetic, where wrapping is defined.
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

// Number of vectors that are folded before any is stored. Ranks' buffers have equal offsets within
// pages, so alternating loads and stores would wait for each other.
constexpr std::size_t kGroup = 4;

// Prefetch distance of sources, in bytes. Hardware prefetching stops at the end of a page, and
// alternates between the rows of two ranks. Beyond the last-level cache, 4 MiB of two ranks took
// 149 us without prefetching and 76 us with it (Zen 3); within L2 it costs 4 %. The prefetch never
// reaches beyond the end, since those lines belong to another rank.
constexpr std::int64_t kAhead = 2048;

template <class Sources>
HWY_INLINE void fetch_ahead(const Sources& sources, std::int64_t at, std::int64_t bytes) {
  for (std::size_t s = 0; s < sources.size(); ++s)
    for (std::int64_t line = 0; line < bytes; line += 64)
      hwy::Prefetch(sources[s] + at + kAhead + line);
}

// Keeps `kCount` pointers in registers (used for two ranks); 0: any number of pointers.
template <class Byte, std::size_t kCount>
struct Rows {
  template <class Pointer>
  explicit Rows(std::span<Pointer const> rows) {
    for (std::size_t r = 0; r < kCount; ++r) row[r] = static_cast<Byte*>(rows[r]);
  }
  std::size_t size() const { return kCount; }
  Byte* operator[](std::size_t r) const { return row[r]; }
  Byte* row[kCount];
};
template <class Byte>
struct Rows<Byte, 0> {
  template <class Pointer>
  explicit Rows(std::span<Pointer const> rows) : row(rows.data()), count(rows.size()) {}
  std::size_t size() const { return count; }
  Byte* operator[](std::size_t r) const { return static_cast<Byte*>(row[r]); }
  std::conditional_t<std::is_const_v<Byte>, const void*, void*> const* row;
  std::size_t count;
};

// One vector of the result: the sources folded in order.
template <class T, class Op, class Sources>
HWY_INLINE typename Lanes<T>::V fold(const Sources& sources, std::int64_t offset) {
  using L = Lanes<T>;
  auto value = L::load(sources[0] + offset);
  for (std::size_t s = 1; s < sources.size(); ++s)
    value = Op::apply(typename L::Tag(), value, L::load(sources[s] + offset));
  return value;
}

// Same for a piece shorter than a vector.
template <class T, class Op, class Sources, class Destinations>
HWY_INLINE void reduce_rest(const Sources& sources, const Destinations& destinations,
                            std::int64_t offset, std::int64_t bytes) {
  using L = Lanes<T>;
  const auto rest = static_cast<std::size_t>(bytes);
  HWY_ALIGN std::byte lanes[HWY_MAX_BYTES] = {};
  const auto load_rest = [&](std::size_t s) HWY_ATTR {
    std::memcpy(lanes, sources[s] + offset, rest);
    return L::load(lanes);
  };
  auto value = load_rest(0);
  for (std::size_t s = 1; s < sources.size(); ++s)
    value = Op::apply(typename L::Tag(), value, load_rest(s));
  L::store(value, lanes);
  for (std::size_t d = 0; d < destinations.size(); ++d)
    std::memcpy(destinations[d] + offset, lanes, rest);
}

// Writes the bytes of kGroup vectors with non-temporal stores; `to` is aligned to a vector.
HWY_INLINE void stream_group(const std::byte* group, std::int64_t bytes, std::byte* to) {
  const hn::ScalableTag<std::uint8_t> d;
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t at = 0; at + step <= bytes; at += step)
    hn::Stream(hn::Load(d, reinterpret_cast<const std::uint8_t*>(group + at)), d,
               reinterpret_cast<std::uint8_t*>(to + at));
}

// Bytes until `row` is aligned to a cache line, or -1 if its elements never are.
template <class T>
std::int64_t bytes_to_line(const std::byte* row) {
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) % 64);
  const std::int64_t head = (64 - past) % 64;
  return head % static_cast<std::int64_t>(sizeof(T)) == 0 ? head : -1;
}

// Reduces all whole groups of [0, bytes) with streaming stores, if all destinations have the same
// offset from a cache line. Returns the end of the part it reduced.
template <class T, class Op, class Sources, class Destinations>
HWY_INLINE std::int64_t reduce_streaming(const Sources& sources, const Destinations& destinations,
                                         std::int64_t bytes) {
  using L = Lanes<T>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(typename L::Tag()));
  const std::int64_t step = lanes * static_cast<std::int64_t>(sizeof(T));
  constexpr auto kVectors = static_cast<std::int64_t>(kGroup);
  const std::int64_t head = bytes_to_line<T>(destinations[0]);
  for (std::size_t d = 1; d < destinations.size(); ++d)
    if (bytes_to_line<T>(destinations[d]) != head) return 0;
  if (head < 0 || bytes < head + kVectors * step) return 0;
  std::int64_t at = 0;
  for (; at + step <= head; at += step) {
    const auto value = fold<T, Op>(sources, at);
    for (std::size_t d = 0; d < destinations.size(); ++d) L::store(value, destinations[d] + at);
  }
  if (at < head) reduce_rest<T, Op>(sources, destinations, at, head - at);
  HWY_ALIGN std::byte group[kGroup * HWY_MAX_BYTES];
  for (at = head; at + kVectors * step <= bytes; at += kVectors * step) {
    for (std::int64_t v = 0; v < kVectors; ++v)
      L::store(fold<T, Op>(sources, at + v * step), group + v * step);
    for (std::size_t d = 0; d < destinations.size(); ++d)
      stream_group(group, kVectors * step, destinations[d] + at);
  }
  hwy::FlushStream();
  return at;
}

template <class T, class Op, class Sources, class Destinations>
HWY_INLINE void reduce_rows(const Sources& sources, const Destinations& destinations,
                            std::int64_t bytes, bool past_caches) {
  using L = Lanes<T>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(typename L::Tag()));
  const std::int64_t step = lanes * static_cast<std::int64_t>(sizeof(T));
  std::int64_t at = past_caches ? reduce_streaming<T, Op>(sources, destinations, bytes) : 0;
  for (; at + 4 * step <= bytes; at += 4 * step) {
    static_assert(kGroup == 4);
    if (at + 4 * step + kAhead <= bytes) fetch_ahead(sources, at, 4 * step);
    const auto v0 = fold<T, Op>(sources, at), v1 = fold<T, Op>(sources, at + step);
    const auto v2 = fold<T, Op>(sources, at + 2 * step), v3 = fold<T, Op>(sources, at + 3 * step);
    for (std::size_t d = 0; d < destinations.size(); ++d) {
      std::byte* to = destinations[d] + at;
      L::store(v0, to);
      L::store(v1, to + step);
      L::store(v2, to + 2 * step);
      L::store(v3, to + 3 * step);
    }
  }
  for (; at + step <= bytes; at += step) {
    const auto value = fold<T, Op>(sources, at);
    for (std::size_t d = 0; d < destinations.size(); ++d) L::store(value, destinations[d] + at);
  }
  if (at < bytes) reduce_rest<T, Op>(sources, destinations, at, bytes - at);
}

struct Job {
  std::span<const void* const> sources;
  std::span<void* const> destinations;
  std::int64_t count;
  bool past_caches;
};

template <class T, class Op>
HWY_INLINE void reduce_typed(const Job& job) {
  const std::int64_t bytes = job.count * static_cast<std::int64_t>(sizeof(T));
  const auto run = [&]<std::size_t kSources, std::size_t kDestinations>() HWY_ATTR {
    reduce_rows<T, Op>(Rows<const std::byte, kSources>(job.sources),
                       Rows<std::byte, kDestinations>(job.destinations), bytes, job.past_caches);
  };
  // Sums of rings and pairs of ranks have specialised loops.
  if constexpr (std::is_same_v<Op, Sum>) {
    if (job.sources.size() == 2 && job.destinations.size() == 1)
      return run.template operator()<2, 1>();
    if (job.sources.size() == 2 && job.destinations.size() == 2)
      return run.template operator()<2, 2>();
  }
  run.template operator()<0, 0>();
}

template <class T>
HWY_INLINE void reduce_operation(Reduce operation, const Job& job) {
  switch (operation) {
    case Reduce::sum:
      return reduce_typed<T, Sum>(job);
    case Reduce::prod:
      return reduce_typed<T, Product>(job);
    case Reduce::min:
      return reduce_typed<T, Extreme<true>>(job);
    case Reduce::max:
      return reduce_typed<T, Extreme<false>>(job);
  }
}

void ReduceAll(Reduce operation, DType dtype, std::span<const void* const> sources,
               std::span<void* const> destinations, std::int64_t count, bool past_caches) {
  const Job job{sources, destinations, count, past_caches};
  switch (dtype) {
    case DType::f32:
      return reduce_operation<float>(operation, job);
    case DType::bf16:
      return reduce_operation<bfloat16>(operation, job);
    case DType::f16:
      return reduce_operation<float16>(operation, job);
    case DType::f64:
      return reduce_operation<double>(operation, job);
    case DType::i64:
      return reduce_operation<std::int64_t>(operation, job);
    case DType::i32:
      return reduce_operation<std::int32_t>(operation, job);
    case DType::u8:
      return reduce_operation<std::uint8_t>(operation, job);
    case DType::i8:
      return reduce_operation<std::int8_t>(operation, job);
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
    reduce_into_all(operation, dtype, sources, {&destination, 1}, count, false, Stream{});
  }
  void reduce_into_all(Reduce operation, DType dtype, std::span<const void* const> sources,
                       std::span<void* const> destinations, std::int64_t count, bool past_caches,
                       Stream) override {
    check::reduce(sources, destinations, count);
    if (count > 0) HWY_DYNAMIC_DISPATCH(ReduceAll)
    (operation, dtype, sources, destinations, count, past_caches);
  }
  // Works in tiles that stay in L1.
  void reduce_widened(Reduce operation, DType dtype, std::span<const void* const> sources,
                      float* destination, std::int64_t count, Stream) override {
    check::reduce_widened(dtype, sources, destination, count);
    constexpr std::int64_t kTile = 1024;
    std::array<float, kTile> next{};
    std::array<std::uint16_t, kTile> aligned;  // copy of a source at an odd address, to read it as
                                               // bf16 or f16
    for (std::int64_t begin = 0; begin < count; begin += kTile) {
      const std::int64_t n = std::min(kTile, count - begin);
      float* const to = destination + begin;
      const auto widen = [&](const void* source, float* into) {
        const void* from = static_cast<const std::byte*>(source) + begin * 2;
        if (reinterpret_cast<std::uintptr_t>(from) % 2 != 0)
          from = std::memcpy(aligned.data(), from, static_cast<std::size_t>(n) * 2);
        convert_elements(dtype, from, DType::f32, into, n);
      };
      widen(sources[0], to);
      for (const void* source : sources.subspan(1)) {
        widen(source, next.data());
        const std::array<const void*, 2> both{to, next.data()};
        reduce(operation, DType::f32, both, to, n, Stream{});
      }
    }
  }
  void scale(DType dtype, void* x, double factor, std::int64_t count, Stream) override {
    check::scale(dtype, count);
    if (count > 0) HWY_DYNAMIC_DISPATCH(ScaleAll)(dtype, x, factor, count);
  }
};

}  // namespace

std::unique_ptr<ReductionKernels> make_cpu_reduction() {
  limit_instruction_set();
  return std::make_unique<CpuReduction>();
}

}  // namespace shoal::kernels
#endif
