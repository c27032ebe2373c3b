#include "shoal/kernels/cuda/attention_groups.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels {
namespace {

constexpr int kThreads = 256;

// Offsets of an element of a key head: `one` in the caller's tensor, `many` in the expanded tensor.
struct Place {
  std::int64_t one, many;  // many: the first copy; the others follow at a distance of head_dim
};
__device__ __forceinline__ Place place_of(const GroupedHeads& s, std::int64_t element) {
  const std::int64_t d = element % s.head_dim, head = element / s.head_dim % s.key_heads,
                     row = element / (s.head_dim * s.key_heads);
  return {row / s.length * s.batch_stride + row % s.length * s.row_stride + head * s.head_dim + d,
          (row * s.key_heads + head) * s.group * s.head_dim + d};
}

// Each thread handles N elements of a head.
template <int N, class T, bool expands>
__global__ void __launch_bounds__(kThreads)
    group_kernel(GroupedHeads s, std::int64_t packs, const T* from, T* to) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const Place at = place_of(s, i * N);
    float x[N];
    if constexpr (expands) {
      load(from + at.one, x);
      for (std::int64_t k = 0; k < s.group; ++k) store(x, to + at.many + k * s.head_dim);
    } else {
      float sum[N] = {};
      for (std::int64_t k = 0; k < s.group; ++k) {
        load(from + at.many + k * s.head_dim, x);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += x[j];
      }
      store(sum, to + at.one);
    }
  }
}

template <int N, class T, bool expands>
cudaError_t launch(Launch at, const GroupedHeads& s, const void* from, void* to) {
  const std::int64_t packs = s.batch * s.length * s.key_heads * s.head_dim / N;
  if (packs == 0) return cudaSuccess;
  return launch_kernel(group_kernel<N, T, expands>, grid_for(packs, kThreads, at.multiprocessors),
                       kThreads, 0, at.stream, s, packs, static_cast<const T*>(from),
                       static_cast<T*>(to));
}

template <bool expands>
cudaError_t launch(Launch at, DType dtype, const GroupedHeads& s, const void* from, void* to) {
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = 16 / static_cast<int>(sizeof(T));
    if (aligned16(from, to) && s.head_dim % N == 0 && s.batch_stride % N == 0 &&
        s.row_stride % N == 0)
      return launch<N, T, expands>(at, s, from, to);
    return launch<1, T, expands>(at, s, from, to);
  });
}

}  // namespace

cudaError_t launch_expand_heads(Launch at, DType dtype, const GroupedHeads& shape, const void* x,
                                void* expanded) {
  return launch<true>(at, dtype, shape, x, expanded);
}

cudaError_t launch_fold_heads(Launch at, DType dtype, const GroupedHeads& shape,
                              const void* expanded, void* out) {
  return launch<false>(at, dtype, shape, expanded, out);
}

}  // namespace shoal::kernels
