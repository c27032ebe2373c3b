#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/row_packs.cuh"
#include "shoal/kernels/cuda/rows.cuh"
#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kAll = 0xffffffffu;

__device__ __forceinline__ std::int64_t thread_number() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ __forceinline__ std::int64_t thread_count() {
  return static_cast<std::int64_t>(gridDim.x) * kThreads;
}

// Row of the matrix, or -1. `reports`: true in one of the threads that handle the row.
__device__ __forceinline__ std::int64_t row_of(const SelectedRows& rows, std::int64_t i,
                                               bool reports) {
  if (!rows.numbers) return i * rows.stride + rows.offset;
  const std::int64_t number = rows.numbers[i];
  if (number >= rows.limit && reports)
    report(rows.fault, Fault::id_outside_table, i, number, rows.limit);
  return number < 0 || number >= rows.limit ? -1 : i * rows.stride + number;
}

// Moves rows of `packs.columns` words. selects: out = rows of x; otherwise rows of out = x.
template <bool selects, class Word>
__global__ void __launch_bounds__(kThreads)
    move_kernel(SelectedRows rows, RowPacks packs, const Word* x, Word* out, Word missing) {
  for (std::int64_t pack = thread_number(); pack < packs.total; pack += thread_count()) {
    const RowPacks::Place place = packs.at(pack);
    const std::int64_t row = row_of(rows, place.row, place.column == 0),
                       here = place.row * packs.columns + place.column,
                       there = row * packs.columns + place.column;
    if constexpr (selects)
      out[here] = row < 0 ? missing : x[there];
    else if (row >= 0)
      out[there] = x[here];
  }
}

template <bool selects, class Word>
cudaError_t move(Launch at, const SelectedRows& rows, const void* x, void* out, Word missing) {
  const RowPacks packs(rows.count, rows.bytes / static_cast<std::int64_t>(sizeof(Word)), 1);
  if (packs.total == 0) return cudaSuccess;
  return launch_kernel(move_kernel<selects, Word>,
                       grid_for(packs.total, kThreads, at.multiprocessors), kThreads, 0, at.stream,
                       rows, packs, static_cast<const Word*>(x), static_cast<Word*>(out), missing);
}

template <bool selects>
cudaError_t move(Launch at, const SelectedRows& rows, const void* x, void* out,
                 std::uint8_t missing) {
  const unsigned byte = missing, half = byte << 8 | byte, word = half << 16 | half;
  if (aligned16(x, out) && rows.bytes % 16 == 0)
    return move<selects>(at, rows, x, out, Pack<unsigned, 4>{{word, word, word, word}});
  if (rows.bytes % 4 == 0 && reinterpret_cast<std::uintptr_t>(x) % 4 == 0 &&
      reinterpret_cast<std::uintptr_t>(out) % 4 == 0)
    return move<selects>(at, rows, x, out, word);
  return move<selects>(at, rows, x, out, static_cast<std::uint16_t>(half));
}

// One warp per sample, 32 ids at a time.
__global__ void __launch_bounds__(kThreads)
    count_kernel(std::int64_t batch, std::int64_t length, const std::int32_t* ids,
                 std::int32_t padding, std::int32_t* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t b = thread_number() / 32; b < batch; b += thread_count() / 32) {
    std::int32_t before = padding;
    for (std::int64_t first = 0; first < length; first += 32) {
      const bool inside = first + lane < length;
      const std::int64_t i = b * length + first + lane;
      const bool counts = inside && ids[i] != padding;
      std::int32_t sum = counts ? 1 : 0;  // inclusive over the warp
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const std::int32_t other = __shfl_up_sync(kAll, sum, step);
        if (lane >= step) sum += other;
      }
      if (inside) out[i] = counts ? before + sum : padding;
      before += __shfl_sync(kAll, sum, 31);
    }
  }
}

constexpr int kSumThreads = 1024;

template <class T>
__global__ void __launch_bounds__(kSumThreads)
    squared_error_kernel(std::int64_t count, const T* x, const float* targets, float loss_scale,
                         const StepState* state, float* loss_sum, T* dx) {
  const float scale = whole_scale(loss_scale, state);
  __shared__ double of_thread[kSumThreads];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kSumThreads) {
    const float target = targets[i];
    const float apart = target == target ? widened(x[i]) - target : 0.0f;
    sum += static_cast<double>(apart) * static_cast<double>(apart);
    if (dx) dx[i] = narrowed<T>(2 * scale * apart);
  }
  of_thread[threadIdx.x] = sum;
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half)
      of_thread[threadIdx.x] += of_thread[threadIdx.x + half];
  }
  if (threadIdx.x == 0) loss_sum[0] = static_cast<float>(of_thread[0]);
}

}  // namespace

cudaError_t launch_select_rows(Launch at, const SelectedRows& rows, const void* x, void* out,
                               std::uint8_t missing) {
  return move<true>(at, rows, x, out, missing);
}

cudaError_t launch_place_rows(Launch at, const SelectedRows& rows, const void* dout, void* dx) {
  return move<false>(at, rows, dout, dx, std::uint8_t{0});
}

cudaError_t launch_count_positions(Launch at, std::int64_t batch, std::int64_t length,
                                   const std::int32_t* ids, std::int32_t padding,
                                   std::int32_t* out) {
  if (batch * length == 0) return cudaSuccess;
  return launch_kernel(count_kernel, grid_for(batch * 32, kThreads, at.multiprocessors), kThreads,
                       0, at.stream, batch, length, ids, padding, out);
}

cudaError_t launch_squared_error(DType dtype, std::int64_t count, const void* x,
                                 const float* targets, float loss_scale, const StepState* state,
                                 float* loss_sum, void* dx, cudaStream_t stream) {
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    return launch_kernel(squared_error_kernel<T>, 1, kSumThreads, 0, stream, count,
                         static_cast<const T*>(x), targets, loss_scale, state, loss_sum,
                         static_cast<T*>(dx));
  });
}

}  // namespace shoal::kernels
