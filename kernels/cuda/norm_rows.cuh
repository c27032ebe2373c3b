// Shared by the kernels of LayerNorm, RMSNorm and softmax. A row is read once into registers, by
// one warp or as many as it needs. The arithmetic prevents the compiler from fusing multiplications
// and additions.
#pragma once

#include <type_traits>

#include "shoal/kernels/cuda/instructions.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/norm.cuh"
#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels::norm_rows {

// Elements that a thread moves at once: eight if every row is aligned for vectors, else one. A
// thread keeps kRegisterPacks packs of its row as read from memory.
constexpr int kVector = 8;
template <int N>
constexpr int kRegisterPacks = N == kVector ? 4 : 16;
constexpr int kWarps = 8;  // of a block, which has one or several rows
constexpr int kThreads = 32 * kWarps;
// Blocks per multiprocessor: enough loads in flight, and no spilled registers.
template <class T>
constexpr int kResident = sizeof(T) == 4 ? 2 : 3;

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, class T>
__device__ __forceinline__ void store_pack(const Pack<T, N>& pack, T* to) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Keeps 16-bit elements packed between two passes over them. Otherwise the compiler would keep the
// widened values, in twice as many registers.
template <class T, int N, int count>
__device__ __forceinline__ void keep_packed(Pack<T, N> (&packs)[count]) {
  if constexpr (sizeof(T) * N == 16) {
#pragma unroll
    for (int k = 0; k < count; ++k) {
      auto* words = reinterpret_cast<std::uint32_t*>(&packs[k]);
#pragma unroll
      for (int i = 0; i < 4; ++i) forget(words[i]);
    }
  }
}

// Distribution of rows over blocks.
struct Rows {
  std::int64_t rows;
  int columns, warps;  // warps per row: a power of two

  unsigned blocks() const {
    const std::int64_t a_block = kWarps / warps;
    return static_cast<unsigned>((rows + a_block - 1) / a_block);
  }
};

inline Rows share_rows(std::int64_t rows, std::int64_t columns, bool vectors) {
  const std::int64_t a_warp =
      32 * (vectors ? kVector * kRegisterPacks<kVector> : kRegisterPacks<1>);
  Rows shared{rows, static_cast<int>(columns), 1};
  while (shared.warps < kWarps && shared.warps * a_warp < columns) shared.warps *= 2;
  return shared;
}

// A thread's position in its row. Threads of rows past the last have no columns and only take part
// in the block's barriers.
template <int N>
struct Place {
  std::int64_t row;
  int columns, first, stride, warps;  // first, stride: columns of the thread's packs
  bool leader;

  __device__ explicit Place(const Rows& rows) {
    const int a_row = 32 * rows.warps, thread = static_cast<int>(threadIdx.x);
    row = static_cast<std::int64_t>(blockIdx.x) * (kThreads / a_row) + thread / a_row;
    columns = row < rows.rows ? rows.columns : 0;
    first = N * (thread % a_row);
    stride = N * a_row;
    warps = rows.warps;
    leader = columns > 0 && thread % a_row == 0;
  }

  // Loads this thread's packs of the row that fit its registers, without waiting for them.
  template <class T>
  __device__ __forceinline__ void load_packs(const T* data,
                                             Pack<T, N> (&packs)[kRegisterPacks<N>]) const {
#pragma unroll
    for (int k = 0; k < kRegisterPacks<N>; ++k)
      if (first + k * stride < columns) packs[k] = load_pack<N>(data + first + k * stride);
  }

  // Calls f(k, column) for each pack: k >= 0 if it is in registers, -1 if it must be read again.
  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
#pragma unroll
    for (int k = 0; k < kRegisterPacks<N>; ++k)
      if (first + k * stride < columns) f(k, first + k * stride);
    for (int column = first + kRegisterPacks<N> * stride; column < columns; column += stride)
      f(-1, column);
  }
};

struct Add {
  __device__ float operator()(float a, float b) const { return __fadd_rn(a, b); }
};
struct Largest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Reduces over the threads of a row; all of them get the result. Each call in a kernel needs its
// own `room` [kWarps].
template <class Combine>
__device__ __forceinline__ float over_row(float value, int warps, float* room, Combine combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
  if (warps == 1) return value;
  const int warp = static_cast<int>(threadIdx.x) / 32, first = warp / warps * warps;
  if (threadIdx.x % 32 == 0) room[warp] = value;
  __syncthreads();
  float all = room[first];
  for (int other = 1; other < warps; ++other) all = combine(all, room[first + other]);
  return all;
}

template <class T>
__device__ __forceinline__ T* row_of(void* data, std::int64_t offset) {
  return static_cast<T*>(data) + offset;
}
template <class T>
__device__ __forceinline__ const T* row_of(const void* data, std::int64_t offset) {
  return static_cast<const T*>(data) + offset;
}

// Coordinates of a row's random numbers.
struct RandomRow {
  PhiloxKey key;
  std::uint32_t sample;
  std::uint64_t first;

  __device__ RandomRow(const RowDropout& dropout, std::int64_t row)
      : key(dropout.site), sample(dropout.sample(row)), first(dropout.first_element(row)) {}
};

template <int N>
__device__ __forceinline__ void random_pack(const RandomRow& random, int column,
                                            std::uint32_t (&bits)[N]) {
  const std::uint64_t element = random.first + static_cast<std::uint64_t>(column);
  if constexpr (N == 1)
    bits[0] = philox_bits_at(random.key, random.sample, element);
  else
    philox_bits(random.key, random.sample, element, bits);
}

// Calls f(T{}, W{}, N) for the dtypes of activations and weights (f32 or the activations' dtype)
// and the number of elements that move at once.
template <class F>
cudaError_t with_types(DType type, DType weight_type, bool vectors, const F& f) {
  return with_training_type(type, [&](auto t) {
    using T = decltype(t);  // named here: inside the next lambda GCC 12 takes it for another type
    return with_training_type(weight_type, [&](auto w) {
      using W = decltype(w);
      if constexpr (std::is_same_v<W, float> || std::is_same_v<W, T>)
        return vectors ? f(T{}, w, std::integral_constant<int, kVector>{})
                       : f(T{}, w, std::integral_constant<int, 1>{});
      else
        return cudaErrorInvalidValue;
    });
  });
}

}  // namespace shoal::kernels::norm_rows
