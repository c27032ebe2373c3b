#include "shoal/kernels/cuda/attention_groups.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels {
namespace {

constexpr int kThreads = 256;

// Where an element of the key heads lies on either side.
struct Place {
  std::int64_t one, many;  // many: of the first copy; the others follow head_dim apart
};
__device__ __forceinline__ Place place_of(const GroupedHeads& s, std::int64_t element) {
  const std::int64_t d = element % s.head_dim, head = element / s.head_dim % s.key_heads,
                     row = element / (s.head_dim * s.key_heads);
  return {row / s.length * s.batch_stride + row % s.length * s.row_stride + head * s.head_dim + d,
          (row * s.key_heads + head) * s.group * s.head_dim + d};
}

template <class T, bool expands>
__global__ void __launch_bounds__(kThreads)
    group_kernel(GroupedHeads s, std::int64_t count, const T* from, T* to) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const Place at = place_of(s, i);
    if constexpr (expands) {
      for (std::int64_t k = 0; k < s.group; ++k) to[at.many + k * s.head_dim] = from[at.one];
    } else {
      float sum = 0;
      for (std::int64_t k = 0; k < s.group; ++k) sum += widened(from[at.many + k * s.head_dim]);
      to[at.one] = narrowed<T>(sum);
    }
  }
}

template <bool expands>
cudaError_t launch(Launch at, DType dtype, const GroupedHeads& s, const void* from, void* to) {
  const std::int64_t count = s.batch * s.length * s.key_heads * s.head_dim;
  if (count == 0) return cudaSuccess;
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    return launch_kernel(group_kernel<T, expands>, grid_for(count, kThreads, at.multiprocessors),
                         kThreads, 0, at.stream, s, count, static_cast<const T*>(from),
                         static_cast<T*>(to));
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
