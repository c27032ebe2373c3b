#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/packed_range.cuh"
#include "shoal/kernels/cuda/reduction.cuh"
#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kTogether = 4;  // sources in flight

// For each dtype: Raw, the type in memory; Wide, the type of the fold (f32 for 16-bit floats,
// unsigned for wrapping integers).
struct F32 {
  using Raw = std::uint32_t;
  using Wide = float;
  static __device__ Wide widen(Raw raw) { return __uint_as_float(raw); }
  static __device__ Raw narrow(Wide wide) { return __float_as_uint(wide); }
};
struct BF16 {
  using Raw = std::uint16_t;
  using Wide = float;
  static __device__ Wide widen(Raw raw) {
    return __uint_as_float(static_cast<std::uint32_t>(raw) << 16);
  }
  static __device__ Raw narrow(Wide wide) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(wide));
  }
};
struct F16 {
  using Raw = std::uint16_t;
  using Wide = float;
  static __device__ Wide widen(Raw raw) { return __half2float(__ushort_as_half(raw)); }
  static __device__ Raw narrow(Wide wide) { return __half_as_ushort(__float2half_rn(wide)); }
};
struct F64 {
  using Raw = std::uint64_t;
  using Wide = double;
  static __device__ Wide widen(Raw raw) {
    return __longlong_as_double(static_cast<long long>(raw));
  }
  static __device__ Raw narrow(Wide wide) { return static_cast<Raw>(__double_as_longlong(wide)); }
};
template <class Signed, class Unsigned>
struct Integer {
  using Raw = Unsigned;
  using Wide = Unsigned;
  using Value = Signed;  // type used to compare
  static __device__ Wide widen(Raw raw) { return raw; }
  static __device__ Raw narrow(Wide wide) { return wide; }
};

template <class T>
concept IsInteger = requires { typename T::Value; };

template <class T>
__device__ __forceinline__ typename T::Wide fold_one(Reduce fold, typename T::Wide a,
                                                     typename T::Wide b) {
  using Wide = typename T::Wide;
  if (fold == Reduce::sum) return static_cast<Wide>(a + b);
  if constexpr (IsInteger<T>) {
    // Multiplies in 64 bits, since a product of small unsigned integers may overflow int.
    if (fold == Reduce::prod)
      return static_cast<Wide>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    using Value = typename T::Value;
    return (fold == Reduce::min) == (static_cast<Value>(b) < static_cast<Value>(a)) ? b : a;
  } else {
    if (fold == Reduce::prod) return a * b;
    if (isnan(a)) return a;
    if (isnan(b)) return b;
    return (fold == Reduce::min) == (b < a) ? b : a;
  }
}

template <class Raw>
inline constexpr int kWidth = 16 / static_cast<int>(sizeof(Raw));

template <class Raw>
__device__ __forceinline__ Raw load_bytes(const unsigned char* from) {
  Raw value = 0;
#pragma unroll
  for (int b = 0; b < static_cast<int>(sizeof(Raw)); ++b)
    value = static_cast<Raw>(value | static_cast<Raw>(from[b]) << 8 * b);
  return value;
}
template <class Raw>
__device__ __forceinline__ void store_bytes(Raw value, unsigned char* to) {
#pragma unroll
  for (int b = 0; b < static_cast<int>(sizeof(Raw)); ++b)
    to[b] = static_cast<unsigned char>(value >> 8 * b);
}

template <class Raw>
__device__ __forceinline__ Pack<Raw, kWidth<Raw>> load_piece(const void* base, const Piece& piece,
                                                             PackedRange::Access access) {
  constexpr int N = kWidth<Raw>;
  const auto* from = static_cast<const unsigned char*>(base) + piece.first * sizeof(Raw);
  if (access == PackedRange::by_packs && piece.count == N)
    return *reinterpret_cast<const Pack<Raw, N>*>(from);
  Pack<Raw, N> pack;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    pack.v[k] = 0;
    if (k >= piece.count) continue;
    pack.v[k] = access == PackedRange::by_bytes ? load_bytes<Raw>(from + k * sizeof(Raw))
                                                : reinterpret_cast<const Raw*>(from)[k];
  }
  return pack;
}

template <class Raw>
__device__ __forceinline__ void store_piece(const Pack<Raw, kWidth<Raw>>& pack, void* base,
                                            const Piece& piece, PackedRange::Access access) {
  constexpr int N = kWidth<Raw>;
  auto* to = static_cast<unsigned char*>(base) + piece.first * sizeof(Raw);
  if (access == PackedRange::by_packs && piece.count == N) {
    *reinterpret_cast<Pack<Raw, N>*>(to) = pack;
    return;
  }
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (k >= piece.count) continue;
    if (access == PackedRange::by_bytes)
      store_bytes(pack.v[k], to + k * sizeof(Raw));
    else
      reinterpret_cast<Raw*>(to)[k] = pack.v[k];
  }
}

// Stores the result of a fold in f32, in packs if it is aligned.
__device__ __forceinline__ void store_wide(const float* value, void* base, const Piece& piece,
                                           int width) {
  auto* to = static_cast<float*>(base) + piece.first;
  if (piece.count == width && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    for (int k = 0; k < width; k += 4)
      *reinterpret_cast<Pack<float, 4>*>(to + k) = {
          {value[k], value[k + 1], value[k + 2], value[k + 3]}};
    return;
  }
  for (int k = 0; k < width; ++k)
    if (k < piece.count) to[k] = value[k];
}

template <class T, bool widened>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(Reduce fold, const __grid_constant__ ReducePointers pointers, PackedRange range,
                  std::int64_t count) {
  using Raw = typename T::Raw;
  constexpr int N = kWidth<Raw>;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       pack < range.packs; pack += step) {
    const Piece piece(range, pack, count, N);
    typename T::Wide value[N] = {};
    for (int s = 0; s < pointers.source_count; s += kTogether) {
      Pack<Raw, N> raw[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (s + u >= pointers.source_count) break;
        raw[u] = load_piece<Raw>(pointers.sources[s + u], piece, range.access);
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (s + u >= pointers.source_count) break;
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const typename T::Wide next = T::widen(raw[u].v[k]);
          value[k] = s + u == 0 ? next : fold_one<T>(fold, value[k], next);
        }
      }
    }
    if constexpr (widened) {
      store_wide(value, pointers.destinations[0], piece, N);
    } else {
      Pack<Raw, N> result;
#pragma unroll
      for (int k = 0; k < N; ++k) result.v[k] = T::narrow(value[k]);
      for (int d = 0; d < pointers.destination_count; ++d)
        store_piece(result, pointers.destinations[d], piece, range.access);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(typename T::Wide factor, void* x, PackedRange range, std::int64_t count) {
  using Raw = typename T::Raw;
  constexpr int N = kWidth<Raw>;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       pack < range.packs; pack += step) {
    const Piece piece(range, pack, count, N);
    Pack<Raw, N> value = load_piece<Raw>(x, piece, range.access);
#pragma unroll
    for (int k = 0; k < N; ++k) value.v[k] = T::narrow(T::widen(value.v[k]) * factor);
    store_piece(value, x, piece, range.access);
  }
}

template <class T, bool widened = false>
cudaError_t reduce(Launch at, Reduce fold, const ReducePointers& pointers, std::int64_t count) {
  const auto first = reinterpret_cast<std::uintptr_t>(pointers.sources[0]);
  std::uintptr_t differing = 0;
  for (int s = 0; s < pointers.source_count; ++s)
    differing |= reinterpret_cast<std::uintptr_t>(pointers.sources[s]) ^ first;
  for (int d = 0; !widened && d < pointers.destination_count; ++d)
    differing |= reinterpret_cast<std::uintptr_t>(pointers.destinations[d]) ^ first;
  const PackedRange range(count, sizeof(typename T::Raw), first, differing);
  return launch_kernel(reduce_kernel<T, widened>,
                       grid_for(range.packs, kThreads, at.multiprocessors), kThreads, 0, at.stream,
                       fold, pointers, range, count);
}

template <class T>
cudaError_t scale(Launch at, void* x, double factor, std::int64_t count) {
  const PackedRange range(count, sizeof(typename T::Raw), reinterpret_cast<std::uintptr_t>(x), 0);
  return launch_kernel(scale_kernel<T>, grid_for(range.packs, kThreads, at.multiprocessors),
                       kThreads, 0, at.stream, static_cast<typename T::Wide>(factor), x, range,
                       count);
}

}  // namespace

cudaError_t launch_reduce(Launch at, Reduce fold, DType dtype, const ReducePointers& pointers,
                          std::int64_t count) {
  if (count == 0) return cudaSuccess;
  switch (dtype) {
    case DType::f32:
      return reduce<F32>(at, fold, pointers, count);
    case DType::bf16:
      return reduce<BF16>(at, fold, pointers, count);
    case DType::f16:
      return reduce<F16>(at, fold, pointers, count);
    case DType::f64:
      return reduce<F64>(at, fold, pointers, count);
    case DType::i64:
      return reduce<Integer<std::int64_t, std::uint64_t>>(at, fold, pointers, count);
    case DType::i32:
      return reduce<Integer<std::int32_t, std::uint32_t>>(at, fold, pointers, count);
    case DType::u8:
      return reduce<Integer<std::uint8_t, std::uint8_t>>(at, fold, pointers, count);
    case DType::i8:
      return reduce<Integer<std::int8_t, std::uint8_t>>(at, fold, pointers, count);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_reduce_widened(Launch at, Reduce fold, DType dtype,
                                  const ReducePointers& pointers, std::int64_t count) {
  if (count == 0) return cudaSuccess;
  if (dtype == DType::bf16) return reduce<BF16, true>(at, fold, pointers, count);
  if (dtype == DType::f16) return reduce<F16, true>(at, fold, pointers, count);
  return cudaErrorInvalidValue;
}

cudaError_t launch_reduction_scale(Launch at, DType dtype, void* x, double factor,
                                   std::int64_t count) {
  if (count == 0) return cudaSuccess;
  switch (dtype) {
    case DType::f32:
      return scale<F32>(at, x, factor, count);
    case DType::bf16:
      return scale<BF16>(at, x, factor, count);
    case DType::f16:
      return scale<F16>(at, x, factor, count);
    case DType::f64:
      return scale<F64>(at, x, factor, count);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace shoal::kernels
