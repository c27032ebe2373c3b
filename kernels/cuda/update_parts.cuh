// Parts of the kernels of update rules: reading, rounding and writing four elements at a time, and
// the chunks of a table.
#pragma once

#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/optimizer.cuh"
#include "shoal/kernels/cuda/philox.cuh"
#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels::update_parts {

inline constexpr int kThreads = 256;
// Number of resident blocks, limited by registers. Blocks take chunks in turn, so a second wave
// would only add a tail.
inline constexpr int kBlocksPerMultiprocessor = 4;

// Four elements; if not `whole`, only the first `some` are valid.
using Four = float[4];

template <bool whole, class T>
__device__ inline void read(const T* from, int some, Four& x) {
  if constexpr (whole)
    load(from, x);
  else
    load_some(from, some, x);
}
template <bool whole, class T>
__device__ inline void write(const Four& x, T* to, int some) {
  if constexpr (whole)
    store(x, to);
  else
    store_some(x, some, to);
}

__device__ inline std::uint32_t two(float low, float high, DType type) {
  if (type == DType::bf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

// Writes the 16-bit copy, starting at element `first`; does nothing if there is none.
template <bool whole>
__device__ inline void write_copy(const Four& x, void* parameter, DType type, std::int64_t first,
                                  int some) {
  if (parameter == nullptr) return;
  auto* to = static_cast<std::uint16_t*>(parameter) + first;
  if constexpr (whole)
    *reinterpret_cast<uint2*>(to) = make_uint2(two(x[0], x[1], type), two(x[2], x[3], type));
  else if (type == DType::bf16)
    store_some(x, some, reinterpret_cast<__nv_bfloat16*>(to));
  else
    store_some(x, some, reinterpret_cast<__half*>(to));
}

// Reads the values to update: f32 masters, or bf16 parameters without masters.
template <bool whole>
__device__ inline void read_parameter(const AdamWTensor& x, std::int64_t i, int some, Four& p) {
  read<whole>(x.master + i, some, p);
}
template <bool whole>
__device__ inline void read_parameter(const RoundedTensor& x, std::int64_t i, int some, Four& p) {
  read<whole>(static_cast<const __nv_bfloat16*>(x.parameter) + i, some, p);
}

template <bool whole>
__device__ inline void write_parameter(const Four& p, const AdamWTensor& x, const StepState*,
                                       std::int64_t i, int some) {
  write<whole>(p, x.master + i, some);
  write_copy<whole>(p, x.parameter, x.copy, i, some);
}
template <bool whole>
__device__ inline void write_parameter(const Four& p, const RoundedTensor& x,
                                       const StepState* state, std::int64_t i, int some) {
  const PhiloxKey key(x.place.site(state));
  std::uint32_t bits[4] = {};
  if (x.place.consecutive(i, 4) == 4) {
    philox_bits(key, 0, x.place.element(i), bits);
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (k < some) bits[k] = philox_bits_at(key, 0, x.place.element(i + k));
  }
  Four rounded;
#pragma unroll
  for (int k = 0; k < 4; ++k)
    rounded[k] = __uint_as_float(rounded_stochastically(__float_as_uint(p[k]), bits[k]));
  // The values are exact in bf16.
  write<whole>(rounded, static_cast<__nv_bfloat16*>(x.parameter) + i, some);
}

// Calls step.template operator()<whole>(i, some) over [begin, end), four elements per thread.
template <class Step>
__device__ inline void fours(std::int64_t begin, std::int64_t end, std::int64_t stride, bool whole,
                             const Step& step) {
  for (std::int64_t i = begin; i < end; i += stride) {
    if (whole && i + 4 <= end)
      step.template operator()<true>(i, 4);
    else
      step.template operator()<false>(i, static_cast<int>(end - i < 4 ? end - i : 4));
  }
}

// Calls step(tensor, its index, chunk, begin, end) for this block's chunks.
template <class Table, class Step>
__device__ inline void chunks(const Table& table, std::int64_t size, const Step& step) {
  std::uint32_t t = 0;
  for (std::uint32_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    while (t + 1 < table.tensors && table.tensor[t + 1].first_chunk <= chunk) ++t;
    const auto& x = table.tensor[t];
    const std::int64_t begin = (chunk - x.first_chunk) * size;
    step(x, t, chunk, begin, begin + size < x.count ? begin + size : x.count);
  }
}

// False if the update is to be skipped. An update before the first step is a caller's error.
__device__ inline bool runs(const StepState& state, FaultRecord* fault) {
  if (state.skip != 0) return false;
  if (state.step >= 1) return true;
  if (blockIdx.x == 0) report(fault, Fault::step_is_zero, 0, 0, 0);
  return false;
}

// All threads get the same value; the order is that of the thread indices.
__device__ inline double block_sum(double value, double* room) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += room[warp];
  return sum;
}

// Number of blocks for `items` blocks of work, no more than are resident at once.
inline int grid(std::int64_t items, int multiprocessors) {
  const std::int64_t most = std::int64_t{multiprocessors} * kBlocksPerMultiprocessor;
  return static_cast<int>(items < most ? (items < 1 ? 1 : items) : most);
}

}  // namespace shoal::kernels::update_parts
