#include "shoal/collectives/backend/local_reduction.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "shoal/runtime/base/error.h"

// One more copy of the hot loops for each instruction set that pays; the dynamic linker picks.
// ThreadSanitizer cannot run the resolvers, which come before it is ready.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define SHOAL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SHOAL_CLONES
#endif

namespace shoal::collectives {
namespace {

using kernels::Reduce;

// Elements folded at a time: accumulator and sources stay in the first-level cache.
constexpr std::int64_t kBlock = 2048;

// Buffers need not be aligned to their element: go through memcpy, which compiles to loads.
template <typename T>
T load(const std::byte* from, std::int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* to, std::int64_t index, T value) {
  std::memcpy(to + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

template <Reduce operation, typename T>
inline T combine(T a, T b) {
  if constexpr (operation == Reduce::sum || operation == Reduce::prod) {
    // Integers wrap, as they do in NCCL and MPI, without undefined overflow.
    if constexpr (std::is_integral_v<T>) {
      const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
      return static_cast<T>(operation == Reduce::sum ? x + y : x * y);
    } else {
      return operation == Reduce::sum ? a + b : a * b;
    }
  } else if constexpr (operation == Reduce::min) {
    // The NaN of either side wins.
    return (b < a || b != b) ? b : a;
  } else {
    return (b > a || b != b) ? b : a;
  }
}

template <Reduce operation, typename T>
SHOAL_CLONES void fold2(const std::byte* a, const std::byte* b, std::byte* out,
                        std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    store<T>(out, i, combine<operation, T>(load<T>(a, i), load<T>(b, i)));
}

template <Reduce operation, typename T>
void reduce_plain(std::span<const void* const> sources, std::byte* out, std::int64_t count) {
  const auto at = [&](std::size_t s, std::int64_t begin) {
    return static_cast<const std::byte*>(sources[s]) + begin * static_cast<std::int64_t>(sizeof(T));
  };
  alignas(64) std::array<std::byte, kBlock * sizeof(T)> sum;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    std::byte* destination = out + begin * static_cast<std::int64_t>(sizeof(T));
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
    if (sources.size() == 1) {
      if (destination != at(0, begin)) std::memmove(destination, at(0, begin), bytes);
      continue;
    }
    // The destination may be any of the sources, so it is written last.
    const std::byte* partial = at(0, begin);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      const bool last = s + 1 == sources.size();
      fold2<operation, T>(partial, at(s, begin), last ? destination : sum.data(), n);
      partial = sum.data();
    }
  }
}

SHOAL_CLONES void widen_bf16(const std::byte* source, float* destination, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    destination[i] = static_cast<float>(load<bfloat16>(source, i));
}

SHOAL_CLONES void narrow_bf16(const float* source, std::byte* destination, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) store(destination, i, bfloat16(source[i]));
}

template <Reduce operation>
void reduce_16bit(DType dtype, std::span<const void* const> sources, std::byte* out,
                  std::int64_t count) {
  alignas(64) std::array<float, kBlock> sum, next;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const auto at = [&](std::size_t s) {
      return static_cast<const std::byte*>(sources[s]) + begin * 2;
    };
    widen(dtype, at(0), sum.data(), n);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      widen(dtype, at(s), next.data(), n);
      const auto* bytes = reinterpret_cast<const std::byte*>(sum.data());
      fold2<operation, float>(bytes, reinterpret_cast<const std::byte*>(next.data()),
                              reinterpret_cast<std::byte*>(sum.data()), n);
    }
    narrow(dtype, sum.data(), out + begin * 2, n);
  }
}

template <Reduce operation>
void reduce_any(DType dtype, std::span<const void* const> sources, void* destination,
                std::int64_t count) {
  auto* out = static_cast<std::byte*>(destination);
  switch (dtype) {
    case DType::f32:
      return reduce_plain<operation, float>(sources, out, count);
    case DType::f64:
      return reduce_plain<operation, double>(sources, out, count);
    case DType::i64:
      return reduce_plain<operation, std::int64_t>(sources, out, count);
    case DType::i32:
      return reduce_plain<operation, std::int32_t>(sources, out, count);
    case DType::u8:
      return reduce_plain<operation, std::uint8_t>(sources, out, count);
    case DType::i8:
      return reduce_plain<operation, std::int8_t>(sources, out, count);
    case DType::bf16:
    case DType::f16:
      return reduce_16bit<operation>(dtype, sources, out, count);
  }
}

template <typename T>
void scale_plain(std::byte* x, double factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    store(x, i, static_cast<T>(load<T>(x, i) * static_cast<T>(factor)));
}

class LocalReduction final : public kernels::ReductionKernels {
 public:
  void reduce(Reduce operation, DType dtype, std::span<const void* const> sources,
              void* destination, std::int64_t count, Stream) override {
    SHOAL_CHECK(!sources.empty(), "reduce: no source");
    switch (operation) {
      case Reduce::sum:
        return reduce_any<Reduce::sum>(dtype, sources, destination, count);
      case Reduce::prod:
        return reduce_any<Reduce::prod>(dtype, sources, destination, count);
      case Reduce::min:
        return reduce_any<Reduce::min>(dtype, sources, destination, count);
      case Reduce::max:
        return reduce_any<Reduce::max>(dtype, sources, destination, count);
    }
  }

  void scale(DType dtype, void* x, double factor, std::int64_t count, Stream) override {
    auto* bytes = static_cast<std::byte*>(x);
    if (dtype == DType::f32) return scale_plain<float>(bytes, factor, count);
    if (dtype == DType::f64) return scale_plain<double>(bytes, factor, count);
    SHOAL_CHECK(dtype == DType::bf16 || dtype == DType::f16, "scale of {}", to_string(dtype));
    alignas(64) std::array<float, kBlock> wide;
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
      const std::int64_t n = std::min(kBlock, count - begin);
      widen(dtype, bytes + begin * 2, wide.data(), n);
      scale_plain<float>(reinterpret_cast<std::byte*>(wide.data()), factor, n);
      narrow(dtype, wide.data(), bytes + begin * 2, n);
    }
  }
};

}  // namespace

std::unique_ptr<kernels::ReductionKernels> make_local_reduction() {
  return std::make_unique<LocalReduction>();
}

void widen(DType dtype, const void* source, float* destination, std::int64_t count) {
  const auto* from = static_cast<const std::byte*>(source);
  if (dtype == DType::bf16) return widen_bf16(from, destination, count);
  for (std::int64_t i = 0; i < count; ++i)
    destination[i] = static_cast<float>(load<float16>(from, i));
}

void narrow(DType dtype, const float* source, void* destination, std::int64_t count) {
  auto* to = static_cast<std::byte*>(destination);
  if (dtype == DType::bf16) return narrow_bf16(source, to, count);
  for (std::int64_t i = 0; i < count; ++i) store(to, i, float16(source[i]));
}

}  // namespace shoal::collectives
