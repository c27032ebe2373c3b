#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/sum_rows.cuh"

namespace shoal::kernels::cuda {
namespace {

constexpr int kLanes = 32;  // threads along the columns; one warp
constexpr int kRows = 8;    // threads along the rows
// Enough blocks of 256 threads for the largest device, each with several loads in flight.
constexpr std::int64_t kBlocks = 1024, kLeastRows = 64;

// Block (x, y) sums columns [x·32·N, ..) over the rows of chunk y. A thread handles N adjacent
// columns and every eighth row; a column's eight sums are added in order. `out`
// [gridDim.y, columns].
template <class T, int N>
__global__ void __launch_bounds__(kLanes* kRows)
    sum_chunks(const T* x, std::int64_t rows, std::int64_t columns, std::int64_t rows_a_chunk,
               float* out, bool accumulate) {
  __shared__ float sums[kRows][kLanes * N];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kLanes * N;
  const std::int64_t column = first + threadIdx.x * N;
  const std::int64_t begin = blockIdx.y * rows_a_chunk;
  const std::int64_t end = begin + rows_a_chunk < rows ? begin + rows_a_chunk : rows;
  float sum[N] = {};
  if (column < columns) {
#pragma unroll 8
    for (std::int64_t row = begin + threadIdx.y; row < end; row += kRows) {
      float value[N];
      load(x + row * columns + column, value);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += value[i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sums[threadIdx.y][threadIdx.x * N + i] = sum[i];
  __syncthreads();
  for (int j = threadIdx.y * kLanes + threadIdx.x; j < kLanes * N; j += kLanes * kRows) {
    if (first + j >= columns) continue;
    float total = 0;
#pragma unroll
    for (int y = 0; y < kRows; ++y) total += sums[y][j];
    float* const place = out + static_cast<std::int64_t>(blockIdx.y) * columns + first + j;
    *place = accumulate ? *place + total : total;
  }
}

template <class T, int N>
cudaError_t launch_chunks(const void* x, std::int64_t rows, std::int64_t columns,
                          std::int64_t chunks, float* out, bool accumulate, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((columns + kLanes * N - 1) / (kLanes * N)),
                  static_cast<unsigned>(chunks));
  return launch_kernel(sum_chunks<T, N>, grid, dim3(kLanes, kRows), 0, stream,
                       static_cast<const T*>(x), rows, columns, (rows + chunks - 1) / chunks, out,
                       accumulate);
}

cudaError_t sum(const void* x, DType type, std::int64_t rows, std::int64_t columns,
                std::int64_t chunks, float* out, bool accumulate, cudaStream_t stream) {
  return with_training_type(type, [&](auto value) {
    using T = decltype(value);
    constexpr int N = 16 / sizeof(T);
    if (columns % N == 0 && aligned16(x))
      return launch_chunks<T, N>(x, rows, columns, chunks, out, accumulate, stream);
    return launch_chunks<T, 1>(x, rows, columns, chunks, out, accumulate, stream);
  });
}

}  // namespace

std::int64_t sum_rows_chunks(std::int64_t rows, std::int64_t columns) {
  // The number of blocks along the columns if each handles 256 columns, as for aligned 16-bit
  // elements. Other inputs get more blocks.
  const std::int64_t across = (columns + 255) / 256;
  const std::int64_t wanted = (kBlocks + across - 1) / across, most = rows / kLeastRows;
  return wanted < most ? wanted : most > 1 ? most : 1;
}

cudaError_t launch_sum_rows(const void* x, DType type, std::int64_t rows, std::int64_t columns,
                            float* partial, float* out, bool accumulate, cudaStream_t stream) {
  const std::int64_t chunks = sum_rows_chunks(rows, columns);
  if (chunks == 1) return sum(x, type, rows, columns, 1, out, accumulate, stream);
  if (const cudaError_t status = sum(x, type, rows, columns, chunks, partial, false, stream);
      status != cudaSuccess)
    return status;
  // One column per thread for any alignment, since there are few partial sums.
  return launch_chunks<float, 1>(partial, chunks, columns, 1, out, accumulate, stream);
}

}  // namespace shoal::kernels::cuda
