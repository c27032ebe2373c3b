// Cross-entropy, one block per row. The first pass reads the row once, keeps it in shared memory
// unchanged, and computes its largest logit and the sum of exponentials together ("online softmax",
// Milakov and Gimelshein, 2018). The second pass computes gradients from the kept row. Each thread
// sees the same elements in both passes, so a row may be overwritten in place.
#include "shoal/kernels/cuda/instructions.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/loss.cuh"
#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels {
namespace {

constexpr int kVector = 8;
constexpr int kMostThreads = 512;
constexpr int kAhead = 4;  // loads in flight per thread
constexpr int kSumThreads = 256;

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

// Reduces over a block, in warp order; all threads get the result. Between two calls with the same
// `room` [32] there must be a barrier.
template <class T, class Combine>
__device__ __forceinline__ T over_block(T value, T* room, const Combine& combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();
  value = room[0];
  for (int warp = 1; warp < warps; ++warp) value = combine(value, room[warp]);
  return value;
}
struct Add {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// e^x to two units of the last place; 0 where f32 would be denormal. It equals __expf without its
// handling of denormals. Arguments are differences from the largest logit, so large results lose no
// precision.
__device__ __forceinline__ float exp_of(float x) { return exp2_quick(x * 1.4426950408889634f); }

// The largest logit as the shift in exp(x - largest); 0 if all logits so far are -inf.
__device__ __forceinline__ float finite_or_zero(float largest) {
  return largest == -INFINITY ? 0.0f : largest;
}

// Running statistics of a thread's part of a row.
struct Online {
  float largest = -INFINITY, sum = 0, total = 0;  // sum: of exp(logit - largest)

  // x must be -inf beyond `valid`.
  template <int N>
  __device__ __forceinline__ void take(const float (&x)[N], int valid, bool with_total) {
    float top = x[0];
#pragma unroll
    for (int j = 1; j < N; ++j) top = fmaxf(top, x[j]);
    top = fmaxf(largest, top);
    const float shift = finite_or_zero(top);
    sum *= exp_of(largest - shift);
    largest = top;
#pragma unroll
    for (int j = 0; j < N; ++j) sum += exp_of(x[j] - shift);
    if (!with_total) return;
#pragma unroll
    for (int j = 0; j < N; ++j) total += j < valid ? x[j] : 0.0f;
  }
};

// Calls f(pack, column) for a thread's packs of [0, columns), reading kAhead of them before using
// the first.
template <int N, class T, class F>
__device__ __forceinline__ void each_pack(const T* row, std::int64_t columns, const F& f) {
  const std::int64_t stride = static_cast<std::int64_t>(blockDim.x) * N;
  for (std::int64_t base = static_cast<std::int64_t>(threadIdx.x) * N; base < columns;
       base += kAhead * stride) {
    Pack<T, N> pack[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (base + k * stride < columns) pack[k] = load_pack<N>(row + base + k * stride);
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (base + k * stride < columns) f(pack[k], base + k * stride);
  }
}

// Number of a pack's elements before `classes`; only a row's last packs have fewer than N.
template <int N>
__device__ __forceinline__ int valid_of(std::int64_t column, std::int64_t classes) {
  const std::int64_t rest = classes - column;
  return rest >= N ? N : rest < 0 ? 0 : static_cast<int>(rest);
}

__device__ __forceinline__ float capped(float logit, float cap) {
  return cap > 0 ? cap * tanhf(logit / cap) : logit;
}
// The derivative of a capped logit by the logit.
__device__ __forceinline__ float slope_of(float capped, float cap) {
  const float bent = capped / cap;
  return cap > 0 ? fmaf(-bent, bent, 1.0f) : 1.0f;
}

// The logits of a pack under the soft cap; -inf beyond `valid`.
template <class T, int N>
__device__ __forceinline__ void widen(const Pack<T, N>& pack, int valid, float cap, float (&x)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = widened(pack.v[j]);
  if (cap > 0) {
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = capped(x[j], cap);
  }
  if (valid == N) return;
#pragma unroll
  for (int j = 0; j < N; ++j)
    if (j >= valid) x[j] = -INFINITY;
}

// Zero gradient of a row without a target.
template <class G, int N>
__device__ void clear_row(G* gradient, std::int64_t leading) {
  constexpr float zeros[N] = {};
  for (std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * N; column < leading;
       column += static_cast<std::int64_t>(blockDim.x) * N)
    store(zeros, gradient + column);
}

// A row's target, or -1. A target outside the vocabulary is reported and becomes -1.
__device__ __forceinline__ std::int32_t target_of(const std::int32_t* targets, std::int64_t row,
                                                  std::int64_t first_row, std::int64_t classes,
                                                  FaultRecord* fault) {
  const std::int32_t target = targets[row];
  if (target < classes) return target < 0 ? -1 : target;
  if (threadIdx.x == 0)
    report(fault, Fault::target_outside_vocabulary, first_row + row, target, classes);
  return -1;
}

template <class T, class G, int N, bool kCapped>
__global__ void __launch_bounds__(kMostThreads, 2)
    cross_entropy_kernel(const __grid_constant__ CrossEntropyLaunch args, bool keep) {
  __shared__ float room[3][32];
  const std::int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(args.logits) + row * args.leading;
  G* gradient = args.gradient ? static_cast<G*>(args.gradient) + row * args.leading : nullptr;
  const std::int32_t target =
      target_of(args.targets, row, args.first_row, args.classes, args.fault);
  if (target < 0) {
    if (gradient) clear_row<G, N>(gradient, args.leading);
    if (threadIdx.x > 0) return;
    args.token_loss[row] = 0;
    if (args.correct) args.correct[row] = 0;
    return;
  }
  // The target's logit is read before any thread overwrites it; over_block's barriers order the
  // two.
  const float cap = kCapped ? args.soft_cap : 0.0f,
              at_target = capped(widened(logits[target]), cap);
  const bool smooth = args.label_smoothing > 0;
  T* kept = dynamic_shared<T>();  // [leading], if `keep`
  Online mine;
  each_pack<N>(logits, args.leading, [&](const Pack<T, N>& pack, std::int64_t column) {
    if (keep) *reinterpret_cast<Pack<T, N>*>(kept + column) = pack;
    const int valid = valid_of<N>(column, args.classes);
    float x[N];
    widen(pack, valid, cap, x);
    mine.take(x, valid, smooth);
  });
  const float largest = over_block(mine.largest, room[0], Largest{});
  const float sum =
      over_block(mine.sum * exp_of(mine.largest - finite_or_zero(largest)), room[1], Add{});
  // The total is needed only with smoothing. If a class is masked by -inf, the total is infinite,
  // and 0 times infinity is NaN.
  const float total = smooth ? over_block(mine.total, room[2], Add{}) : 0.0f;
  const T* again = keep ? kept : logits;
  if (args.correct) {
    bool earlier = at_target != largest;
    if (!earlier)
      each_pack<N>(again, args.leading, [&](const Pack<T, N>& pack, std::int64_t column) {
#pragma unroll
        for (int j = 0; j < N; ++j)
          earlier |= column + j < target && capped(widened(pack.v[j]), cap) == largest;
      });
    earlier = __syncthreads_or(earlier) != 0;
    if (threadIdx.x == 0) args.correct[row] = earlier ? 0 : 1;
  }
  const double smoothing = args.label_smoothing, n = static_cast<double>(args.classes);
  if (threadIdx.x == 0) {
    const double log_sum = static_cast<double>(largest) + log(static_cast<double>(sum));
    double loss = (1 - smoothing) * (log_sum - static_cast<double>(at_target));
    if (smooth) loss += smoothing * (log_sum - static_cast<double>(total) / n);
    args.token_loss[row] = static_cast<float>(loss);
  }
  if (!gradient) return;
  const float scale = whole_scale(args.scale, args.state), factor = scale / sum,
              offset = smooth ? static_cast<float>(smoothing / n) * scale : 0.0f;
  each_pack<N>(again, args.leading, [&](const Pack<T, N>& pack, std::int64_t column) {
    const int valid = valid_of<N>(column, args.classes);
    float x[N], out[N];
    widen(pack, N, cap, x);
#pragma unroll
    for (int j = 0; j < N; ++j) out[j] = exp_of(x[j] - largest) * factor - offset;
    if (cap > 0) {
#pragma unroll
      for (int j = 0; j < N; ++j) out[j] *= slope_of(x[j], cap);
    }
    if (valid < N) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (j >= valid) out[j] = 0;
    }
    store(out, gradient + column);
  });
  // The thread that wrote the rest of the pack writes the target's gradient. It subtracts
  // the 1 in f32, so that the result is rounded only once.
  if (static_cast<int>(target / N % static_cast<int>(blockDim.x)) == static_cast<int>(threadIdx.x))
    gradient[target] = narrowed<G>(
        (scale * (exp_of(at_target - largest) / sum - 1 + args.label_smoothing) - offset) *
        slope_of(at_target, cap));
}

__global__ void __launch_bounds__(1024)
    loss_total_kernel(const float* token_loss, const std::int32_t* correct, std::int64_t rows,
                      float* loss_sum, std::int32_t* correct_sum) {
  __shared__ double losses[32];
  __shared__ int hits[32];
  double loss = 0;
  int hit = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    loss += static_cast<double>(token_loss[row]);
    if (correct_sum) hit += correct[row];
  }
  loss = over_block(loss, losses, Add{});
  hit = over_block(hit, hits, Add{});
  if (threadIdx.x > 0) return;
  *loss_sum = static_cast<float>(loss);
  if (correct_sum) *correct_sum = hit;
}

// A block sums 32 columns over one part of the rows; its warps take rows in turn.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    column_parts_kernel(const T* x, std::int64_t rows, std::int64_t columns, std::int64_t leading,
                        float* partial) {
  constexpr int kWarps = kSumThreads / 32;
  __shared__ float sums[kWarps][32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  const std::int64_t a_part = (rows + gridDim.y - 1) / gridDim.y, begin = a_part * blockIdx.y,
                     end = begin + a_part < rows ? begin + a_part : rows;
  float sum = 0;
  if (column < columns)
    for (std::int64_t row = begin + warp; row < end; row += kWarps)
      sum += widened(x[row * leading + column]);
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += sums[w][lane];
  partial[blockIdx.y * columns + column] = sum;
}

__global__ void __launch_bounds__(kSumThreads)
    column_total_kernel(const float* partial, std::int64_t parts, std::int64_t columns, float* out,
                        bool accumulate) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
  for (std::int64_t part = 0; part < parts; ++part) sum += partial[part * columns + column];
  out[column] = accumulate ? out[column] + sum : sum;
}

__global__ void __launch_bounds__(kMostThreads)
    shard_statistics_kernel(float* all, std::int64_t columns, const std::int32_t* targets,
                            std::int64_t first_class, float cap, float* statistics) {
  __shared__ float room[3][32];
  const std::int64_t row = blockIdx.x;
  float* logits = all + row * columns;
  const std::int64_t target = targets[row] - first_class;  // a column, or outside
  const float at_target =
      targets[row] >= 0 && target >= 0 && target < columns ? capped(logits[target], cap) : 0.0f;
  float largest = -INFINITY, total = 0;
  each_pack<1>(logits, columns, [&](const Pack<float, 1>& pack, std::int64_t) {
    const float logit = capped(pack.v[0], cap);
    largest = fmaxf(largest, logit);
    total += logit;
  });
  largest = over_block(largest, room[0], Largest{});
  total = over_block(total, room[1], Add{});
  float sum = 0;
  each_pack<1>(logits, columns, [&](const Pack<float, 1>& pack, std::int64_t column) {
    // A masked class has probability 0, even if all classes are masked. The sum carries any NaN.
    const float logit = capped(pack.v[0], cap),
                value = logit == -INFINITY ? 0.0f : expf(logit - largest);
    logits[column] = cap > 0 ? logit : value;
    sum += value;
  });
  sum = over_block(sum, room[2], Add{});
  if (threadIdx.x == 0) {
    float* out = statistics + 4 * row;
    out[0] = largest;
    out[1] = sum;
    out[2] = at_target;
    out[3] = total;
  }
}

template <class G>
__global__ void __launch_bounds__(kMostThreads)
    shard_cross_entropy_kernel(const __grid_constant__ ShardLossLaunch args) {
  __shared__ float shared_factor;
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = target_of(args.targets, row, 0, args.classes, args.fault);
  G* gradient = args.gradient ? static_cast<G*>(args.gradient) + row * args.columns : nullptr;
  if (target < 0) {
    if (gradient) clear_row<G, 1>(gradient, args.columns);
    if (threadIdx.x == 0) args.token_loss[row] = 0;
    return;
  }
  const double smoothing = args.label_smoothing, n = static_cast<double>(args.classes),
               scale = static_cast<double>(whole_scale(args.scale, args.state));
  if (threadIdx.x == 0) {
    const auto of = [&](std::int64_t rank) {
      return args.statistics + 4 * (rank * args.rows + row);
    };
    float largest = -INFINITY;
    double sum = 0, at_target = 0, total = 0;
    for (std::int64_t rank = 0; rank < args.ranks; ++rank) largest = fmaxf(largest, of(rank)[0]);
    for (std::int64_t rank = 0; rank < args.ranks; ++rank) {
      const float* one = of(rank);
      // A rank with no classes or only masked ones adds 0; exp(-inf - -inf) would be NaN.
      if (one[1] != 0)
        sum += static_cast<double>(one[1]) *
               exp(static_cast<double>(one[0]) - static_cast<double>(largest));
      at_target += static_cast<double>(one[2]);
      total += static_cast<double>(one[3]);
    }
    const double log_sum = static_cast<double>(largest) + log(sum);
    double loss = (1 - smoothing) * (log_sum - at_target);
    if (smoothing > 0) loss += smoothing * (log_sum - total / n);
    args.token_loss[row] = static_cast<float>(loss);
    // exp(own - largest) / sum; the sum carries any NaN among the logits.
    shared_factor = static_cast<float>(
        scale * exp(static_cast<double>(of(args.rank)[0]) - static_cast<double>(largest)) / sum);
  }
  if (!gradient) return;
  __syncthreads();
  const float factor = shared_factor, offset = static_cast<float>(scale * smoothing / n),
              target_less = static_cast<float>(scale * (1 - smoothing));
  const std::int64_t own_target = target - args.first_class;
  const float cap = args.soft_cap, own_largest = args.statistics[4 * (args.rank * args.rows + row)];
  each_pack<1>(args.exponentials + row * args.columns, args.columns,
               [&](const Pack<float, 1>& pack, std::int64_t column) {
                 const float kept = pack.v[0];
                 float value = (cap > 0 ? expf(kept - own_largest) : kept) * factor - offset;
                 if (column == own_target) value -= target_less;
                 gradient[column] = narrowed<G>(value * slope_of(kept, cap));
               });
}

// Threads for rows of `packs` packs: whole warps.
int threads_for(std::int64_t packs) {
  const std::int64_t wanted = (packs + 31) / 32 * 32;
  return static_cast<int>(wanted < 32 ? 32 : wanted < kMostThreads ? wanted : kMostThreads);
}

template <class T, class G, int N, bool kCapped>
cudaError_t launch_one(const CrossEntropyLaunch& args, int shared_limit, cudaStream_t stream) {
  const std::int64_t bytes = args.leading * static_cast<std::int64_t>(sizeof(T));
  const bool keep = args.gradient != nullptr && bytes <= shared_limit;
  const auto dynamic = static_cast<std::size_t>(keep ? bytes : 0);
  if (dynamic > 40 * 1024) {  // beyond the default limit of a block, with its static memory
    const cudaError_t status =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(cross_entropy_kernel<T, G, N, kCapped>),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (status != cudaSuccess) return status;
  }
  return launch_kernel(cross_entropy_kernel<T, G, N, kCapped>, static_cast<unsigned>(args.rows),
                       threads_for(args.leading / N), dynamic, stream, args, keep);
}

// Kernels without a cap need no registers for it.
template <class T, class G, int N>
cudaError_t launch(const CrossEntropyLaunch& args, int shared_limit, cudaStream_t stream) {
  return args.soft_cap > 0 ? launch_one<T, G, N, true>(args, shared_limit, stream)
                           : launch_one<T, G, N, false>(args, shared_limit, stream);
}

}  // namespace

cudaError_t launch_cross_entropy(const CrossEntropyLaunch& args, int shared_limit,
                                 cudaStream_t stream) {
  const bool vectors = args.leading % kVector == 0 && aligned16(args.logits, args.gradient);
  return with_training_type(args.type, [&](auto type) {
    using T = decltype(type);
    if (args.gradient && args.gradient_type != args.type)
      return vectors ? launch<T, float, kVector>(args, shared_limit, stream)
                     : launch<T, float, 1>(args, shared_limit, stream);
    return vectors ? launch<T, T, kVector>(args, shared_limit, stream)
                   : launch<T, T, 1>(args, shared_limit, stream);
  });
}

cudaError_t launch_loss_total(const float* token_loss, const std::int32_t* correct,
                              std::int64_t rows, float* loss_sum, std::int32_t* correct_sum,
                              cudaStream_t stream) {
  return launch_kernel(loss_total_kernel, 1, 1024, 0, stream, token_loss, correct, rows, loss_sum,
                       correct_sum);
}

std::int64_t column_parts(std::int64_t rows) {
  constexpr std::int64_t kRows = 64, kMost = 64;
  const std::int64_t parts = (rows + kRows - 1) / kRows;
  return parts < kMost ? parts : kMost;
}

cudaError_t launch_column_sums(DType type, const void* x, std::int64_t rows, std::int64_t columns,
                               std::int64_t leading, float* partial, float* out, bool accumulate,
                               cudaStream_t stream) {
  const std::int64_t parts = column_parts(rows);
  const dim3 blocks(static_cast<unsigned>((columns + 31) / 32), static_cast<unsigned>(parts));
  const cudaError_t status = with_training_type(type, [&](auto element) {
    using T = decltype(element);
    return launch_kernel(column_parts_kernel<T>, blocks, kSumThreads, 0, stream,
                         static_cast<const T*>(x), rows, columns, leading, partial);
  });
  if (status != cudaSuccess) return status;
  return launch_kernel(column_total_kernel,
                       static_cast<unsigned>((columns + kSumThreads - 1) / kSumThreads),
                       kSumThreads, 0, stream, partial, parts, columns, out, accumulate);
}

cudaError_t launch_shard_statistics(float* logits, std::int64_t rows, std::int64_t columns,
                                    const std::int32_t* targets, std::int64_t first_class,
                                    float soft_cap, float* statistics, cudaStream_t stream) {
  return launch_kernel(shard_statistics_kernel, static_cast<unsigned>(rows), threads_for(columns),
                       0, stream, logits, columns, targets, first_class, soft_cap, statistics);
}

cudaError_t launch_shard_cross_entropy(const ShardLossLaunch& args, cudaStream_t stream) {
  return with_training_type(args.gradient_type, [&](auto type) {
    return launch_kernel(shard_cross_entropy_kernel<decltype(type)>,
                         static_cast<unsigned>(args.rows), threads_for(args.columns), 0, stream,
                         args);
  });
}

}  // namespace shoal::kernels
