// Elements of the training dtypes in kernels. Values are f32 in registers. Memory is moved in
// 16-byte pieces if the pointer is aligned, else element by element. Conversions round to nearest
// even, as in dtype.h.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "shoal/kernels/cuda/launch.cuh"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// True if all pointers are aligned for vectors.
template <class... Pointers>
bool aligned16(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

#ifdef __CUDACC__

// Calls f(T{}), which returns a cudaError_t, for the device type T of a training dtype.
template <class F>
cudaError_t with_training_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(__nv_bfloat16{});
    case DType::f16:
      return f(__half{});
    default:
      return cudaErrorInvalidValue;
  }
}

__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widened(__half x) { return __half2float(x); }

template <class T>
__device__ __forceinline__ T narrowed(float x);
template <>
__device__ __forceinline__ float narrowed<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrowed<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half narrowed<__half>(float x) {
  return __float2half_rn(x);
}

// N elements that move together, in 16-byte pieces or as one piece of 4 or 8 bytes. N is a power of
// two.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T v[N];
};

// Loads N elements from `from`, which is aligned to 16 bytes (or to all N elements, if they are
// smaller).
template <int N, class T>
__device__ __forceinline__ void load(const T* from, float (&x)[N]) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = widened(pack.v[k]);
}
template <int N, class T>
__device__ __forceinline__ void store(const float (&x)[N], T* to) {
  Pack<T, N> pack;
#pragma unroll
  for (int k = 0; k < N; ++k) pack.v[k] = narrowed<T>(x[k]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Loads the first `count` of N elements from any address; the others become 0.
template <int N, class T>
__device__ __forceinline__ void load_some(const T* from, std::int64_t count, float (&x)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = k < count ? widened(from[k]) : 0.0f;
}
template <int N, class T>
__device__ __forceinline__ void store_some(const float (&x)[N], std::int64_t count, T* to) {
#pragma unroll
  for (int k = 0; k < N; ++k)
    if (k < count) to[k] = narrowed<T>(x[k]);
}

// Loads `count` of N elements, as vectors if all N are wanted and the pointer is aligned. The
// choice should be uniform in a warp except at a tensor's end.
template <int N, class T>
__device__ __forceinline__ void load(const T* from, std::int64_t count, bool aligned,
                                     float (&x)[N]) {
  if (aligned && count >= N)
    load(from, x);
  else
    load_some(from, count, x);
}
template <int N, class T>
__device__ __forceinline__ void store(const float (&x)[N], std::int64_t count, bool aligned,
                                      T* to) {
  if (aligned && count >= N)
    store(x, to);
  else
    store_some(x, count, to);
}

#endif  // __CUDACC__

}  // namespace shoal::kernels
