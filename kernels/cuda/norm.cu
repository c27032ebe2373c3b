// LayerNorm and softmax: a row is read once into registers, by one warp or by as many as it takes,
// and written once. Rows longer than a block's registers are read again for what does not fit.
// Arithmetic leaves no room for contraction, so that the fused form gives the bits of the two
// kernels it stands for.
#include <type_traits>

#include "shoal/kernels/cuda/instructions.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/norm.cuh"
#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels {
namespace {

// A thread of a row moves N elements at once, eight where every row begins where vectors may, else
// one; and keeps so many of its packs as they came from memory.
constexpr int kVector = 8;
template <int N>
constexpr int kHeld = N == kVector ? 4 : 16;
constexpr int kWarps = 8;  // of a block, which has one row or several
constexpr int kThreads = 32 * kWarps;
// Blocks that a multiprocessor holds: enough reads in flight, and no spilled registers.
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

// The compiler would rather keep 16-bit elements widened from one pass over them to the next, in
// twice the registers: it shall not know that they are still the same.
template <class T, int N, int count>
__device__ __forceinline__ void keep_packed(Pack<T, N> (&held)[count]) {
  if constexpr (sizeof(T) * N == 16) {
#pragma unroll
    for (int k = 0; k < count; ++k) {
      auto* words = reinterpret_cast<std::uint32_t*>(&held[k]);
#pragma unroll
      for (int i = 0; i < 4; ++i) forget(words[i]);
    }
  }
}

// How blocks share out rows.
struct Rows {
  std::int64_t rows;
  int columns, warps;  // warps per row: a power of two

  unsigned blocks() const {
    const std::int64_t a_block = kWarps / warps;
    return static_cast<unsigned>((rows + a_block - 1) / a_block);
  }
};

Rows share_rows(std::int64_t rows, std::int64_t columns, bool vectors) {
  const std::int64_t a_warp = 32 * (vectors ? kVector * kHeld<kVector> : kHeld<1>);
  Rows shared{rows, static_cast<int>(columns), 1};
  while (shared.warps < kWarps && shared.warps * a_warp < columns) shared.warps *= 2;
  return shared;
}

// A thread's place in its row. Threads of rows past the last have no columns; they only take part
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

  // The row's packs of this thread that fit its registers; nothing waits for them yet.
  template <class T>
  __device__ __forceinline__ void hold(const T* data, Pack<T, N> (&held)[kHeld<N>]) const {
#pragma unroll
    for (int k = 0; k < kHeld<N>; ++k)
      if (first + k * stride < columns) held[k] = load_pack<N>(data + first + k * stride);
  }

  // f(k, column) for each pack: k >= 0 where it is held, -1 where it must be read again.
  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
#pragma unroll
    for (int k = 0; k < kHeld<N>; ++k)
      if (first + k * stride < columns) f(k, first + k * stride);
    for (int column = first + kHeld<N> * stride; column < columns; column += stride) f(-1, column);
  }
};

struct Add {
  __device__ float operator()(float a, float b) const { return __fadd_rn(a, b); }
};
struct Largest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Over the threads of a row; the same in all of them. Each call of a kernel needs room of its own,
// [kWarps].
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

// A row's place among the random numbers.
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

// sum = residual + dropout(x), rounded to T: what is normalised is what backward reads.
template <bool drops, class T, int N>
__device__ __forceinline__ Pack<T, N> residual_sum(const Pack<T, N>& x, const Pack<T, N>& residual,
                                                   const RowDropout& dropout,
                                                   const RandomRow& random, int column) {
  [[maybe_unused]] std::uint32_t bits[N];
  if constexpr (drops) random_pack(random, column, bits);
  Pack<T, N> sum;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float value = widened(x.v[j]);
    if constexpr (drops) value = dropped(value, bits[j], dropout.threshold, dropout.scale);
    sum.v[j] = narrowed<T>(__fadd_rn(widened(residual.v[j]), value));
  }
  return sum;
}

enum class Input { x, sum, dropped_sum };  // what is normalised

template <class T, class W, int N, Input input, bool centred>
__global__ void __launch_bounds__(kThreads, input == Input::dropped_sum ? 2 : kResident<T>)
    layer_norm_kernel(const __grid_constant__ LayerNormLaunch args, const Rows rows) {
  __shared__ float room[2][kWarps];
  const Place<N> at(rows);
  const std::int64_t start = at.row * rows.columns;
  const T* x = row_of<T>(args.x, start);
  Pack<T, N> held[kHeld<N>];
  at.hold(x, held);
  if constexpr (input != Input::x) {
    const T* residual = row_of<T>(args.residual, start);
    T* sum = row_of<T>(args.sum, start);
    Pack<T, N> skipped[kHeld<N>];
    at.hold(residual, skipped);
    const RandomRow random(args.dropout, at.row);
    at.each([&](int k, int column) {
      const Pack<T, N> one =
          residual_sum < input ==
          Input::dropped_sum > (k >= 0 ? held[k] : load_pack<N>(x + column),
                                k >= 0 ? skipped[k] : load_pack<N>(residual + column), args.dropout,
                                random, column);
      store_pack(one, sum + column);
      if (k >= 0) held[k] = one;
    });
    keep_packed(held);
    x = sum;
  }
  const auto pack = [&](int k, int column) { return k >= 0 ? held[k] : load_pack<N>(x + column); };
  const auto width = static_cast<float>(rows.columns);
  float mean = 0;
  if constexpr (centred) {
    float total = 0;
    at.each([&](int k, int column) {
      const Pack<T, N> v = pack(k, column);
#pragma unroll
      for (int j = 0; j < N; ++j) total = __fadd_rn(total, widened(v.v[j]));
    });
    mean = __fdiv_rn(over_row(total, at.warps, room[0], Add{}), width);
  }
  float squares = 0;
  keep_packed(held);
  at.each([&](int k, int column) {
    const Pack<T, N> v = pack(k, column);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float apart = __fsub_rn(widened(v.v[j]), mean);
      squares = __fmaf_rn(apart, apart, squares);
    }
  });
  const float variance = __fdiv_rn(over_row(squares, at.warps, room[1], Add{}), width);
  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, args.epsilon)));
  T* y = row_of<T>(args.y, start);
  keep_packed(held);
  at.each([&](int k, int column) {
    float gamma[N], beta[N] = {};
    load(static_cast<const W*>(args.gamma) + column, gamma);
    if constexpr (centred) load(static_cast<const W*>(args.beta) + column, beta);
    const Pack<T, N> v = pack(k, column);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float normalised = __fmul_rn(__fsub_rn(widened(v.v[j]), mean), rstd);
      out.v[j] = narrowed<T>(__fmaf_rn(normalised, gamma[j], beta[j]));
    }
    store_pack(out, y + column);
  });
  if (at.leader && args.rstd) {
    if constexpr (centred) args.mean[at.row] = mean;
    args.rstd[at.row] = rstd;
  }
}

// drops: dropout(dx) is written too, where it is the gradient of a branch.
template <class T, class W, int N, bool drops>
__global__ void __launch_bounds__(kThreads, drops ? 2 : kResident<T>)
    layer_norm_backward_kernel(const __grid_constant__ LayerNormBackwardLaunch args,
                               const Rows rows) {
  __shared__ float room[2][kWarps];
  const Place<N> at(rows);
  const std::int64_t start = at.row * rows.columns;
  const T *x = row_of<T>(args.x, start), *dy = row_of<T>(args.dy, start),
          *residual = args.residual ? row_of<T>(args.residual, start) : nullptr;
  Pack<T, N> held_x[kHeld<N>], held_dy[kHeld<N>];
  at.hold(x, held_x);
  at.hold(dy, held_dy);
  const float mean = at.columns > 0 && args.mean ? args.mean[at.row] : 0,
              rstd = at.columns > 0 ? args.rstd[at.row] : 0;
  // f(column, g = dy * gamma, normalised x)
  const auto each = [&](const auto& f) {
    at.each([&](int k, int column) {
      const Pack<T, N> v = k >= 0 ? held_x[k] : load_pack<N>(x + column);
      const Pack<T, N> d = k >= 0 ? held_dy[k] : load_pack<N>(dy + column);
      float g[N], normalised[N];
      load(static_cast<const W*>(args.gamma) + column, g);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        g[j] = __fmul_rn(widened(d.v[j]), g[j]);
        normalised[j] = __fmul_rn(__fsub_rn(widened(v.v[j]), mean), rstd);
      }
      f(column, g, normalised);
    });
  };
  float sum = 0, projection = 0;
  each([&](int, const float(&g)[N], const float(&normalised)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      sum = __fadd_rn(sum, g[j]);
      projection = __fmaf_rn(g[j], normalised[j], projection);
    }
  });
  const auto width = static_cast<float>(rows.columns);
  const float average = args.mean ? __fdiv_rn(over_row(sum, at.warps, room[0], Add{}), width) : 0,
              along = __fdiv_rn(over_row(projection, at.warps, room[1], Add{}), width);
  T* dx = row_of<T>(args.dx, start);
  [[maybe_unused]] const auto random = [&] {
    if constexpr (drops)
      return RandomRow(args.dropout, at.row);
    else
      return 0;
  }();
  keep_packed(held_x);
  keep_packed(held_dy);
  each([&](int column, const float(&g)[N], const float(&normalised)[N]) {
    float skip[N] = {};
    if (residual) load(residual + column, skip);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float rest = __fmaf_rn(-normalised[j], along, __fsub_rn(g[j], average));
      out.v[j] = narrowed<T>(__fadd_rn(__fmul_rn(rstd, rest), skip[j]));
    }
    store_pack(out, dx + column);
    if constexpr (drops) {
      std::uint32_t bits[N];
      random_pack(random, column, bits);
#pragma unroll
      for (int j = 0; j < N; ++j)
        out.v[j] = narrowed<T>(
            dropped(widened(out.v[j]), bits[j], args.dropout.threshold, args.dropout.scale));
      store_pack(out, row_of<T>(args.branch, start) + column);
    }
  });
}

// Columns of a block: N a lane; its warps take rows in turn.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    layer_norm_weight_kernel(const __grid_constant__ LayerNormWeightLaunch args) {
  constexpr int kAhead = 4;  // rows of a warp that are read at once
  constexpr int kTile = 32 * N;
  __shared__ float sums[kWarps][2 * kTile];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kTile,
                     column = first_column + N * lane;
  const std::int64_t a_part = (args.rows + args.parts - 1) / args.parts,
                     begin = a_part * blockIdx.y,
                     end = begin + a_part < args.rows ? begin + a_part : args.rows;
  float gamma[N] = {}, beta[N] = {};
  if (column < args.columns) {
    for (std::int64_t row = begin + warp; row < end; row += kAhead * kWarps) {
      Pack<T, N> dy[kAhead], x[kAhead];
      float mean[kAhead], rstd[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const std::int64_t r = row + k * kWarps;
        if (r >= end) continue;
        dy[k] = load_pack<N>(row_of<T>(args.dy, r * args.columns + column));
        x[k] = load_pack<N>(row_of<T>(args.x, r * args.columns + column));
        mean[k] = args.mean ? args.mean[r] : 0;
        rstd[k] = args.rstd[r];
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (row + k * kWarps >= end) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float g = widened(dy[k].v[j]);
          gamma[j] = fmaf(g, (widened(x[k].v[j]) - mean[k]) * rstd[k], gamma[j]);
          beta[j] += g;
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    sums[warp][N * lane + j] = gamma[j];
    sums[warp][kTile + N * lane + j] = beta[j];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kTile; i += kThreads) {
    const std::int64_t at = first_column + i % kTile;
    if (at >= args.columns) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][i];
    args.partial[(2 * static_cast<std::int64_t>(blockIdx.y) + i / kTile) * args.columns + at] = sum;
  }
}

// A block sums 32 of the 2 * columns results, its warps taking parts in turn.
__global__ void __launch_bounds__(kThreads)
    layer_norm_weight_total_kernel(const __grid_constant__ LayerNormWeightLaunch args) {
  __shared__ float sums[kWarps][32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * 32 + lane, all = 2 * args.columns;
  float sum = 0;
  if (at < all)
    for (std::int64_t part = warp; part < args.parts; part += kWarps)
      sum += args.partial[part * all + at];
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || at >= all || (at >= args.columns && !args.dbeta)) return;
  sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += sums[w][lane];
  float* out = at < args.columns ? args.dgamma + at : args.dbeta + (at - args.columns);
  *out = args.accumulate ? *out + sum : sum;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads, kResident<T>)
    softmax_kernel(const void* from, void* to, const Rows rows) {
  __shared__ float room[2][kWarps];
  const Place<N> at(rows);
  const T* x = row_of<T>(from, at.row * rows.columns);
  T* y = row_of<T>(to, at.row * rows.columns);
  Pack<T, N> held[kHeld<N>];
  at.hold(x, held);
  const auto pack = [&](int k, int column) { return k >= 0 ? held[k] : load_pack<N>(x + column); };
  float largest = -INFINITY;
  at.each([&](int k, int column) {
    const Pack<T, N> v = pack(k, column);
#pragma unroll
    for (int j = 0; j < N; ++j) largest = fmaxf(largest, widened(v.v[j]));
  });
  largest = over_row(largest, at.warps, room[0], Largest{});
  // The exponentials are made twice: 16-bit outputs cannot hold them.
  float sum = 0;
  keep_packed(held);
  at.each([&](int k, int column) {
    const Pack<T, N> v = pack(k, column);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += expf(widened(v.v[j]) - largest);
  });
  const float inverse = 1.0f / over_row(sum, at.warps, room[1], Add{});
  keep_packed(held);
  at.each([&](int k, int column) {
    const Pack<T, N> v = pack(k, column);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.v[j] = narrowed<T>(expf(widened(v.v[j]) - largest) * inverse);
    store_pack(out, y + column);
  });
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads, kResident<T>)
    softmax_backward_kernel(const void* y_data, const void* dy_data, void* dx_data,
                            const Rows rows) {
  __shared__ float room[kWarps];
  const Place<N> at(rows);
  const std::int64_t start = at.row * rows.columns;
  const T *y = row_of<T>(y_data, start), *dy = row_of<T>(dy_data, start);
  T* dx = row_of<T>(dx_data, start);
  Pack<T, N> held_y[kHeld<N>], held_dy[kHeld<N>];
  at.hold(y, held_y);
  at.hold(dy, held_dy);
  const auto each = [&](const auto& f) {
    at.each([&](int k, int column) {
      f(column, k >= 0 ? held_y[k] : load_pack<N>(y + column),
        k >= 0 ? held_dy[k] : load_pack<N>(dy + column));
    });
  };
  float dot = 0;
  each([&](int, const Pack<T, N>& p, const Pack<T, N>& g) {
#pragma unroll
    for (int j = 0; j < N; ++j) dot = fmaf(widened(p.v[j]), widened(g.v[j]), dot);
  });
  dot = over_row(dot, at.warps, room, Add{});
  keep_packed(held_y);
  keep_packed(held_dy);
  each([&](int column, const Pack<T, N>& p, const Pack<T, N>& g) {
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.v[j] = narrowed<T>(widened(p.v[j]) * (widened(g.v[j]) - dot));
    store_pack(out, dx + column);
  });
}

// f(T{}, W{}, N) for the types of activations and weights, which are f32 or the same, and the
// elements that move at once.
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

}  // namespace

cudaError_t launch_layer_norm(const LayerNormLaunch& args, cudaStream_t stream) {
  const bool vectors = args.columns % kVector == 0 &&
                       aligned16(args.x, args.residual, args.sum, args.y, args.gamma, args.beta);
  const Rows rows = share_rows(args.rows, args.columns, vectors);
  return with_types(args.type, args.weight_type, vectors, [&](auto t, auto w, auto n) {
    using T = decltype(t);
    using W = decltype(w);
    const auto launch = [&](auto centred) {
      if (!args.residual)
        return launch_kernel(layer_norm_kernel<T, W, n(), Input::x, centred()>, rows.blocks(),
                             kThreads, 0, stream, args, rows);
      if (args.dropout.threshold == 0)
        return launch_kernel(layer_norm_kernel<T, W, n(), Input::sum, centred()>, rows.blocks(),
                             kThreads, 0, stream, args, rows);
      return launch_kernel(layer_norm_kernel<T, W, n(), Input::dropped_sum, centred()>,
                           rows.blocks(), kThreads, 0, stream, args, rows);
    };
    return args.beta ? launch(std::true_type{}) : launch(std::false_type{});
  });
}

cudaError_t launch_layer_norm_backward(const LayerNormBackwardLaunch& args, cudaStream_t stream) {
  const bool vectors = args.columns % kVector == 0 &&
                       aligned16(args.dy, args.x, args.residual, args.dx, args.branch, args.gamma);
  const Rows rows = share_rows(args.rows, args.columns, vectors);
  return with_types(args.type, args.weight_type, vectors, [&](auto t, auto w, auto n) {
    using T = decltype(t);
    using W = decltype(w);
    if (args.branch)
      return launch_kernel(layer_norm_backward_kernel<T, W, n(), true>, rows.blocks(), kThreads, 0,
                           stream, args, rows);
    return launch_kernel(layer_norm_backward_kernel<T, W, n(), false>, rows.blocks(), kThreads, 0,
                         stream, args, rows);
  });
}

std::int64_t layer_norm_weight_parts(std::int64_t rows, std::int64_t columns) {
  // A wave of blocks, two on each of an H100's multiprocessors; at least four rows a warp, or
  // partial sums are traffic of their own.
  constexpr std::int64_t kBlocks = 264, kLeastRows = 4 * kWarps, kTile = 32 * kVector;
  const std::int64_t tiles = (columns + kTile - 1) / kTile,
                     most = (rows + kLeastRows - 1) / kLeastRows,
                     wanted = kBlocks / tiles < 1 ? 1 : kBlocks / tiles;
  return wanted < most ? wanted : most;
}

cudaError_t launch_layer_norm_weight(const LayerNormWeightLaunch& args, cudaStream_t stream) {
  const bool vectors = args.columns % kVector == 0 && aligned16(args.dy, args.x);
  if (args.parts > 0) {
    const cudaError_t status =
        with_types(args.type, DType::f32, vectors, [&](auto t, auto, auto n) {
          const dim3 blocks(static_cast<unsigned>((args.columns + 32 * n() - 1) / (32 * n())),
                            static_cast<unsigned>(args.parts));
          return launch_kernel(layer_norm_weight_kernel<decltype(t), n()>, blocks, kThreads, 0,
                               stream, args);
        });
    if (status != cudaSuccess) return status;
  }
  const auto blocks = static_cast<unsigned>((2 * args.columns + 31) / 32);
  return launch_kernel(layer_norm_weight_total_kernel, blocks, kThreads, 0, stream, args);
}

cudaError_t launch_softmax(DType type, std::int64_t rows, std::int64_t columns, const void* x,
                           void* y, cudaStream_t stream) {
  const bool vectors = columns % kVector == 0 && aligned16(x, y);
  const Rows shared = share_rows(rows, columns, vectors);
  return with_types(type, DType::f32, vectors, [&](auto t, auto, auto n) {
    return launch_kernel(softmax_kernel<decltype(t), n()>, shared.blocks(), kThreads, 0, stream, x,
                         y, shared);
  });
}

cudaError_t launch_softmax_backward(DType type, std::int64_t rows, std::int64_t columns,
                                    const void* y, const void* dy, void* dx, cudaStream_t stream) {
  const bool vectors = columns % kVector == 0 && aligned16(y, dy, dx);
  const Rows shared = share_rows(rows, columns, vectors);
  return with_types(type, DType::f32, vectors, [&](auto t, auto, auto n) {
    return launch_kernel(softmax_backward_kernel<decltype(t), n()>, shared.blocks(), kThreads, 0,
                         stream, y, dy, dx, shared);
  });
}

}  // namespace shoal::kernels
