// Adafactor. As in optimizer.cu, the f32 arithmetic of an element is the CPU's; sums are added in
// another fixed order.
#include "shoal/kernels/cuda/adafactor.cuh"
#include "shoal/kernels/cuda/update_parts.cuh"

namespace shoal::kernels {
namespace {

using namespace update_parts;

constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline float* row_factors(const FactoredTensor& x) {
  return reinterpret_cast<float*>(x.sums + 1 + x.all_rows() + x.all_columns());
}

__device__ inline double square_of(const FactoredTensor& x, std::int64_t i, float scale) {
  const double g = __fmul_rn(x.gradient[i], scale);
  return g * g;  // exact
}

// One warp per row.
__global__ void __launch_bounds__(kThreads)
    factored_rows_kernel(const __grid_constant__ FactoredTable table) {
  const StepState state = *table.settings.state;
  if (!runs(state, table.settings.fault)) return;
  const std::int64_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  std::uint32_t t = 0;
  for (std::uint32_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    while (t + 1 < table.tensors && table.tensor[t + 1].first_chunk <= chunk) ++t;
    const FactoredTensor& x = table.tensor[t];
    const std::int64_t touched = (chunk - x.first_chunk) * kFactoredRows + warp;
    if (touched >= x.touched_rows()) continue;
    const std::int64_t first = x.place.first;
    std::int64_t begin = (first / x.part_columns + touched) * x.part_columns - first,
                 end = begin + x.part_columns;
    if (begin < 0) begin = 0;
    if (end > x.count) end = x.count;
    double sum = 0;
    for (std::int64_t i = begin + lane; i < end; i += 32)
      sum += square_of(x, i, state.gradient_scale);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane == 0) x.sums[1 + static_cast<std::int64_t>(x.place.element(begin)) / x.columns] = sum;
  }
}

// One thread per column.
__global__ void __launch_bounds__(kThreads)
    factored_columns_kernel(const __grid_constant__ FactoredTable table, double* partial) {
  static_assert(kThreads == kColumnTile);
  const StepState state = *table.settings.state;
  if (!runs(state, table.settings.fault)) return;
  std::uint32_t t = 0;
  for (std::uint32_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    while (t + 1 < table.tensors && table.tensor[t + 1].first_chunk <= chunk) ++t;
    const FactoredTensor& x = table.tensor[t];
    const std::int64_t own = chunk - x.first_chunk, first = x.place.first;
    const std::int64_t matrix =
        first / (x.part_rows * x.part_columns) + own / (x.row_blocks() * x.column_tiles());
    const std::int64_t column = own / x.row_blocks() % x.column_tiles() * kColumnTile + threadIdx.x;
    const std::int64_t row = own % x.row_blocks() * kColumnRows;
    const std::int64_t last = row + kColumnRows < x.part_rows ? row + kColumnRows : x.part_rows;
    double sum = 0;
    if (column < x.part_columns)
      for (std::int64_t r = row; r < last; ++r) {
        const std::int64_t i = (matrix * x.part_rows + r) * x.part_columns + column - first;
        if (i >= 0 && i < x.count) sum += square_of(x, i, state.gradient_scale);
      }
    partial[std::int64_t{chunk} * kColumnTile + threadIdx.x] = sum;
  }
}

// One block per tensor.
__global__ void __launch_bounds__(kThreads)
    factored_columns_total_kernel(const __grid_constant__ FactoredTable table,
                                  const double* partial) {
  if (table.settings.state->skip != 0) return;
  const FactoredTensor& x = table.tensor[blockIdx.x];
  const std::int64_t columns = x.touched_matrices() * x.part_columns;
  for (std::int64_t c = threadIdx.x; c < columns; c += kThreads) {
    const std::int64_t touched = c / x.part_columns, column = c % x.part_columns;
    const double* const mine =
        partial +
        (x.first_chunk + (touched * x.column_tiles() + column / kColumnTile) * x.row_blocks()) *
            kColumnTile +
        column % kColumnTile;
    double sum = 0;
    for (std::int64_t block = 0; block < x.row_blocks(); ++block) sum += mine[block * kColumnTile];
    const std::int64_t size = x.part_rows * x.part_columns;
    const auto element = static_cast<std::int64_t>(
        x.place.element((x.place.first / size + touched) * size + column - x.place.first));
    const std::int64_t matrix = element / (x.rows * x.columns);
    x.sums[1 + x.all_rows() + matrix * x.columns + element % x.columns] = sum;
  }
}

__device__ inline double kept_of(const StepState& state, double decay_rate) {
  return 1 - pow(static_cast<double>(state.step), decay_rate);
}

__device__ inline double moved(float& moment, double mean, double kept, double epsilon) {
  moment = static_cast<float>(kept * moment + (1 - kept) * (mean + epsilon));
  return moment;
}

// One block per tensor.
__global__ void __launch_bounds__(kThreads)
    factored_moments_kernel(const __grid_constant__ FactoredTable table, double decay_rate) {
  __shared__ double room[kThreads / 32];
  const StepState state = *table.settings.state;
  if (!runs(state, table.settings.fault)) return;
  const FactoredTensor& x = table.tensor[blockIdx.x];
  if (x.columns == 0) return;
  const double kept = kept_of(state, decay_rate), epsilon = table.settings.epsilon;
  const auto height = static_cast<double>(x.rows), width = static_cast<double>(x.columns);
  float *const rows = x.first_moment, *const columns = x.second_moment;
  float* const factors = row_factors(x);
  for (std::int64_t first = 0; first < x.all_rows(); first += x.rows) {
    double mean = 0;
    for (std::int64_t r = first + threadIdx.x; r < first + x.rows; r += kThreads)
      mean += moved(rows[r], x.sums[1 + r] / width, kept, epsilon) / height;
    mean = block_sum(mean, room);
    for (std::int64_t r = first + threadIdx.x; r < first + x.rows; r += kThreads)
      factors[r] = static_cast<float>(1 / sqrt(rows[r] / mean));
    __syncthreads();  // the next matrix's sums use the same memory
  }
  const double* const sums = x.sums + 1 + x.all_rows();
  for (std::int64_t c = threadIdx.x; c < x.all_columns(); c += kThreads)
    factors[x.all_rows() + c] =
        static_cast<float>(1 / sqrt(moved(columns[c], sums[c] / height, kept, epsilon)));
}

// The factors of four elements, of a matrix.
__device__ inline void factors_of(const FactoredTensor& x, std::int64_t i, int some, Four& all) {
  const float* const rows = row_factors(x);
  const float* const columns = rows + x.all_rows();
  const bool joined = x.place.consecutive(i, some) == some;
  std::int64_t row = 0, column = 0, matrix = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k >= some) break;
    if (k == 0 || !joined || column + 1 == x.columns) {
      const auto element = static_cast<std::int64_t>(x.place.element(i + k));
      row = element / x.columns;
      column = element - row * x.columns;
      matrix = x.rows * x.columns == x.elements ? 0 : row / x.rows * x.columns;
    } else {
      ++column;
    }
    all[k] = __fmul_rn(rows[row], columns[matrix + column]);
  }
}

struct AdafactorNumbers {
  float scale, kept, added, epsilon;
};

// u of four elements; elements beyond `some` are 0. `advances`: of a vector, v first.
template <bool whole, bool advances>
__device__ inline void direction(const FactoredTensor& x, const AdafactorNumbers& f, std::int64_t i,
                                 int some, Four& u) {
  Four gradient, factor{};
  read<whole>(x.gradient + i, some, gradient);
  if (x.columns > 0)
    factors_of(x, i, some, factor);
  else
    read<whole>(x.first_moment + i, some, factor);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float g = __fmul_rn(gradient[k], f.scale);
    if (x.columns > 0) {
      u[k] = k < some ? __fmul_rn(factor[k], g) : 0;
      continue;
    }
    if constexpr (advances)
      factor[k] = __fmaf_rn(f.added, __fmaf_rn(g, g, f.epsilon), __fmul_rn(f.kept, factor[k]));
    u[k] = k < some ? __fdiv_rn(g, __fsqrt_rn(factor[k])) : 0;
  }
  if constexpr (advances)
    if (x.columns == 0) write<whole>(factor, x.first_moment + i, some);
}

struct AdafactorSquaresStep {
  const FactoredTensor& x;
  AdafactorNumbers f;
  double& sum;

  template <bool whole>
  __device__ void operator()(std::int64_t i, int some) const {
    Four u;
    direction<whole, true>(x, f, i, some, u);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const double wide = u[k];
      sum = fma(wide, wide, sum);
    }
  }
};

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    adafactor_squares_kernel(const __grid_constant__ FactoredTable table, double decay_rate,
                             double* partial) {
  __shared__ AdafactorNumbers numbers;
  __shared__ double room[kThreads / 32];
  const StepState state = *table.settings.state;
  if (!runs(state, table.settings.fault)) return;
  if (threadIdx.x == 0) {  // pow in f64 is slow
    const double kept = kept_of(state, decay_rate);
    numbers = {state.gradient_scale, static_cast<float>(kept), static_cast<float>(1 - kept),
               static_cast<float>(table.settings.epsilon)};
  }
  __syncthreads();
  const AdafactorNumbers f = numbers;
  double* const of_chunk = room;
  chunks(
      table, kAdafactorChunk,
      [&](const auto& x, std::uint32_t, std::uint32_t chunk, std::int64_t begin, std::int64_t end) {
        double sum = 0;
        fours(begin + 4 * threadIdx.x, end, 4 * kThreads, x.whole != 0,
              AdafactorSquaresStep{x, f, sum});
        sum = block_sum(sum, of_chunk);
        if (threadIdx.x == 0) partial[chunk] = sum;
        __syncthreads();  // the next chunk's sum uses the same memory
      });
}

// One block per tensor.
__global__ void __launch_bounds__(kThreads)
    adafactor_squares_total_kernel(const __grid_constant__ FactoredTable table,
                                   const double* partial) {
  if (table.settings.state->skip != 0) return;
  __shared__ double room[kThreads / 32];
  const FactoredTensor& x = table.tensor[blockIdx.x];
  const std::int64_t count = (x.count + kAdafactorChunk - 1) / kAdafactorChunk;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += partial[x.first_chunk + i];
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) x.sums[0] = sum;
}

struct AdafactorApplyStep {
  const FactoredTensor& x;
  AdafactorNumbers f;
  const StepState* state;
  float rate, decay;

  template <bool whole>
  __device__ void operator()(std::int64_t i, int some) const {
    const AdamWTensor& plain = x;
    const RoundedTensor& rounded = x;
    Four u, p;
    direction<whole, false>(x, f, i, some, u);
    if (x.master != nullptr)
      read_parameter<whole>(plain, i, some, p);
    else
      read_parameter<whole>(rounded, i, some, p);
#pragma unroll
    for (int k = 0; k < 4; ++k) p[k] = __fmaf_rn(-rate, u[k], __fmul_rn(p[k], decay));
    if (x.master != nullptr)
      write_parameter<whole>(p, plain, state, i, some);
    else
      write_parameter<whole>(p, rounded, state, i, some);
  }
};

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    adafactor_apply_kernel(const __grid_constant__ FactoredTable table, double clip_threshold) {
  const StepState state = *table.settings.state;
  if (!runs(state, table.settings.fault)) return;
  const AdafactorNumbers f{state.gradient_scale, 0, 0, 0};
  chunks(table, kAdafactorChunk,
         [&](const auto& x, std::uint32_t, std::uint32_t, std::int64_t begin, std::int64_t end) {
           const double rms = sqrt(x.sums[0] / static_cast<double>(x.elements));
           const double learning_rate = state.learning_rate;
           const auto rate = static_cast<float>(learning_rate / fmax(1.0, rms / clip_threshold));
           const auto decay = static_cast<float>(1 - learning_rate * x.weight_decay);
           fours(begin + 4 * threadIdx.x, end, 4 * kThreads, x.whole != 0,
                 AdafactorApplyStep{x, f, table.settings.state, rate, decay});
         });
}

}  // namespace

cudaError_t launch_factored_rows(const FactoredTable& table, int multiprocessors,
                                 cudaStream_t stream) {
  return launch_kernel(factored_rows_kernel, grid(table.chunks, multiprocessors), kThreads, 0,
                       stream, table);
}
cudaError_t launch_factored_columns(const FactoredTable& table, double* partial,
                                    int multiprocessors, cudaStream_t stream) {
  return launch_kernel(factored_columns_kernel, grid(table.chunks, multiprocessors), kThreads, 0,
                       stream, table, partial);
}
cudaError_t launch_factored_columns_total(const FactoredTable& table, const double* partial,
                                          cudaStream_t stream) {
  return launch_kernel(factored_columns_total_kernel, static_cast<int>(table.tensors), kThreads, 0,
                       stream, table, partial);
}
cudaError_t launch_factored_moments(const FactoredTable& table, double decay_rate,
                                    cudaStream_t stream) {
  return launch_kernel(factored_moments_kernel, static_cast<int>(table.tensors), kThreads, 0,
                       stream, table, decay_rate);
}
cudaError_t launch_adafactor_squares(const FactoredTable& table, double decay_rate, double* partial,
                                     int multiprocessors, cudaStream_t stream) {
  return launch_kernel(adafactor_squares_kernel, grid(table.chunks, multiprocessors), kThreads, 0,
                       stream, table, decay_rate, partial);
}
cudaError_t launch_adafactor_squares_total(const FactoredTable& table, const double* partial,
                                           cudaStream_t stream) {
  return launch_kernel(adafactor_squares_total_kernel, static_cast<int>(table.tensors), kThreads, 0,
                       stream, table, partial);
}
cudaError_t launch_adafactor_apply(const FactoredTable& table, double clip_threshold,
                                   int multiprocessors, cudaStream_t stream) {
  return launch_kernel(adafactor_apply_kernel, grid(table.chunks, multiprocessors), kThreads, 0,
                       stream, table, clip_threshold);
}

}  // namespace shoal::kernels
