// LayerNorm forward, the gradient of its weights, and softmax. A row is read once into registers
// and written once; the part of a row that exceeds a block's registers is read again. With a
// residual, one kernel computes residual + dropout(x) and its norm, with the bits of two kernels.
#include "shoal/kernels/cuda/norm_rows.cuh"

namespace shoal::kernels {
namespace {

using namespace norm_rows;  // NOLINT(google-build-using-namespace): this file's own

// sum = residual + dropout(x), rounded to T before it is normalised, since backward reads the
// rounded value.
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

enum class Input { x, sum, dropped_sum };  // the value to normalise

template <class T, class W, int N, Input input, bool centred>
__global__ void __launch_bounds__(kThreads, input == Input::dropped_sum ? 2 : kResident<T>)
    layer_norm_kernel(const __grid_constant__ LayerNormLaunch args, const Rows rows) {
  __shared__ float room[2][kWarps];
  const Place<N> at(rows);
  const std::int64_t start = at.row * rows.columns;
  const T* x = row_of<T>(args.x, start);
  Pack<T, N> packs[kRegisterPacks<N>];
  at.load_packs(x, packs);
  if constexpr (input != Input::x) {
    const T* residual = row_of<T>(args.residual, start);
    T* sum = row_of<T>(args.sum, start);
    Pack<T, N> skipped[kRegisterPacks<N>];
    at.load_packs(residual, skipped);
    const RandomRow random(args.dropout, at.row);
    at.each([&](int k, int column) {
      const Pack<T, N> one =
          residual_sum < input ==
          Input::dropped_sum > (k >= 0 ? packs[k] : load_pack<N>(x + column),
                                k >= 0 ? skipped[k] : load_pack<N>(residual + column), args.dropout,
                                random, column);
      store_pack(one, sum + column);
      if (k >= 0) packs[k] = one;
    });
    keep_packed(packs);
    x = sum;
  }
  const auto pack = [&](int k, int column) { return k >= 0 ? packs[k] : load_pack<N>(x + column); };
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
  keep_packed(packs);
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
  keep_packed(packs);
  at.each([&](int k, int column) {
    float gamma[N], beta[N] = {};
    load(static_cast<const W*>(args.gamma) + column, gamma);
    if constexpr (centred) load(static_cast<const W*>(args.beta) + column, beta);
    const Pack<T, N> v = pack(k, column);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float normalised = __fmul_rn(__fsub_rn(widened(v.v[j]), mean), rstd);
      out.v[j] =
          narrowed<T>(__fmaf_rn(normalised, __fadd_rn(gamma[j], args.gamma_offset), beta[j]));
    }
    store_pack(out, y + column);
  });
  if (at.leader && args.rstd) {
    if constexpr (centred) args.mean[at.row] = mean;
    args.rstd[at.row] = rstd;
  }
}

// Each lane of a block has N columns; the block's warps take rows in turn.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    layer_norm_weight_kernel(const __grid_constant__ LayerNormWeightLaunch args) {
  constexpr int kAhead = 4;  // rows that a warp reads at once
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

// A block sums 32 of the 2 * columns results; its warps take parts in turn.
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
  Pack<T, N> packs[kRegisterPacks<N>];
  at.load_packs(x, packs);
  const auto pack = [&](int k, int column) { return k >= 0 ? packs[k] : load_pack<N>(x + column); };
  float largest = -INFINITY;
  at.each([&](int k, int column) {
    const Pack<T, N> v = pack(k, column);
#pragma unroll
    for (int j = 0; j < N; ++j) largest = fmaxf(largest, widened(v.v[j]));
  });
  largest = over_row(largest, at.warps, room[0], Largest{});
  // The exponentials are computed twice, since 16-bit outputs cannot hold them.
  float sum = 0;
  keep_packed(packs);
  at.each([&](int k, int column) {
    const Pack<T, N> v = pack(k, column);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += expf(widened(v.v[j]) - largest);
  });
  const float inverse = 1.0f / over_row(sum, at.warps, room[1], Add{});
  keep_packed(packs);
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
  Pack<T, N> packs_y[kRegisterPacks<N>], packs_dy[kRegisterPacks<N>];
  at.load_packs(y, packs_y);
  at.load_packs(dy, packs_dy);
  const auto each = [&](const auto& f) {
    at.each([&](int k, int column) {
      f(column, k >= 0 ? packs_y[k] : load_pack<N>(y + column),
        k >= 0 ? packs_dy[k] : load_pack<N>(dy + column));
    });
  };
  float dot = 0;
  each([&](int, const Pack<T, N>& p, const Pack<T, N>& g) {
#pragma unroll
    for (int j = 0; j < N; ++j) dot = fmaf(widened(p.v[j]), widened(g.v[j]), dot);
  });
  dot = over_row(dot, at.warps, room, Add{});
  keep_packed(packs_y);
  keep_packed(packs_dy);
  each([&](int column, const Pack<T, N>& p, const Pack<T, N>& g) {
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.v[j] = narrowed<T>(widened(p.v[j]) * (widened(g.v[j]) - dot));
    store_pack(out, dx + column);
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

std::int64_t layer_norm_weight_parts(std::int64_t rows, std::int64_t columns) {
  // One wave of blocks, two on each of an H100's multiprocessors. At least four rows a warp, since
  // otherwise partial sums would add noticeable traffic.
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
  return launch_layer_norm_weight_total(args, stream);
}

cudaError_t launch_layer_norm_weight_total(const LayerNormWeightLaunch& args, cudaStream_t stream) {
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
