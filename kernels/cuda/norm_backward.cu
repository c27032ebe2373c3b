// Backward of LayerNorm and RMSNorm. dx and the weights' gradients are computed from one reading of
// dy and x.
#include "shoal/kernels/cuda/norm_rows.cuh"

namespace shoal::kernels {
namespace {

using namespace norm_rows;  // NOLINT(google-build-using-namespace): this file's own

// Per-row numbers needed for dx.
struct RowNumbers {
  float rstd, average, along;
};

// Computes dx of the pack at `column` in the row at `start`, from g = dy * gamma and the normalised
// x. drops: also writes dropout(dx), the gradient of a branch. random(): the row's RandomRow.
template <class T, bool drops, int N, class F>
__device__ __forceinline__ void store_gradient(const LayerNormBackwardLaunch& args,
                                               std::int64_t start, int column,
                                               const RowNumbers& row, const float (&g)[N],
                                               const float (&normalised)[N], const F& random) {
  float skip[N] = {};
  if (args.residual) load(row_of<T>(args.residual, start) + column, skip);
  Pack<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float rest = __fmaf_rn(-normalised[j], row.along, __fsub_rn(g[j], row.average));
    out.v[j] = narrowed<T>(__fadd_rn(__fmul_rn(row.rstd, rest), skip[j]));
  }
  store_pack(out, row_of<T>(args.dx, start) + column);
  if constexpr (drops) {
    std::uint32_t bits[N];
    random_pack(random(), column, bits);
#pragma unroll
    for (int j = 0; j < N; ++j)
      out.v[j] = narrowed<T>(
          dropped(widened(out.v[j]), bits[j], args.dropout.threshold, args.dropout.scale));
    store_pack(out, row_of<T>(args.branch, start) + column);
  }
}

template <class T, class W, int N, bool drops>
__global__ void __launch_bounds__(kThreads, drops ? 2 : kResident<T>)
    layer_norm_backward_kernel(const __grid_constant__ LayerNormBackwardLaunch args,
                               const Rows rows) {
  __shared__ float room[2][kWarps];
  const Place<N> at(rows);
  const std::int64_t start = at.row * rows.columns;
  const T *x = row_of<T>(args.x, start), *dy = row_of<T>(args.dy, start);
  Pack<T, N> packs_x[kRegisterPacks<N>], packs_dy[kRegisterPacks<N>];
  at.load_packs(x, packs_x);
  at.load_packs(dy, packs_dy);
  const float mean = at.columns > 0 && args.mean ? args.mean[at.row] : 0,
              rstd = at.columns > 0 ? args.rstd[at.row] : 0;
  // f(column, g = dy * gamma, normalised x)
  const auto each = [&](const auto& f) {
    at.each([&](int k, int column) {
      const Pack<T, N> v = k >= 0 ? packs_x[k] : load_pack<N>(x + column);
      const Pack<T, N> d = k >= 0 ? packs_dy[k] : load_pack<N>(dy + column);
      float g[N], normalised[N];
      load(static_cast<const W*>(args.gamma) + column, g);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        g[j] = __fmul_rn(widened(d.v[j]), __fadd_rn(g[j], args.gamma_offset));
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
  [[maybe_unused]] const auto random = [&] {
    if constexpr (drops)
      return RandomRow(args.dropout, at.row);
    else
      return 0;
  }();
  keep_packed(packs_x);
  keep_packed(packs_dy);
  each([&](int column, const float(&g)[N], const float(&normalised)[N]) {
    store_gradient<T, drops>(args, start, column, {rstd, average, along}, g, normalised,
                             [&] { return random; });
  });
}

// Adds the groups' sums to `totals` [2, columns] of the block, one group after the other.
template <int P, int N>
__device__ __forceinline__ void add_in_turn(const float (&gamma_sum)[P][N],
                                            const float (&beta_sum)[P][N], int group, int groups,
                                            int first, int stride, int columns, float* totals) {
  for (int turn = 0; turn < groups; ++turn) {
    if (turn == group) {
#pragma unroll
      for (int k = 0; k < P; ++k) {
        const int column = first + k * stride;
        if (column >= columns) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          float *const gamma = totals + column + j, *const beta = gamma + columns;
          *gamma = group == 0 ? gamma_sum[k][j] : *gamma + gamma_sum[k][j];
          *beta = group == 0 ? beta_sum[k][j] : *beta + beta_sum[k][j];
        }
      }
    }
    __syncthreads();
  }
}

constexpr int kMostColumns = 4096;  // beyond, the totals exceed a block's shared memory

// Computes dx for all rows of a part and accumulates their contributions to dgamma and dbeta. Each
// of a block's groups of warps takes rows in turn and keeps its own sums, which are added in order
// at the end. P packs per thread cover the whole row.
template <class T, class W, int P, bool drops>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 4 ? 1 : 2)
    layer_norm_backward_whole_kernel(const __grid_constant__ LayerNormBackwardLaunch args,
                                     const Rows rows, const std::int64_t rows_a_part) {
  constexpr int N = kVector;
  // Two buffers, for this row and the next: one row's sums are read while the next row's are
  // written.
  __shared__ float room[2][2][kWarps];
  float* const totals = dynamic_shared<float>();  // [2, columns]
  const int a_row = 32 * rows.warps, thread = static_cast<int>(threadIdx.x), group = thread / a_row,
            groups = kThreads / a_row, first = N * (thread % a_row), stride = N * a_row;
  const std::int64_t begin = rows_a_part * blockIdx.x,
                     end = begin + rows_a_part < rows.rows ? begin + rows_a_part : rows.rows;
  const auto width = static_cast<float>(rows.columns);
  float gamma_sum[P][N] = {}, beta_sum[P][N] = {};
  int turn = 0;
  for (std::int64_t base = begin; base < end; base += groups, turn ^= 1) {
    const std::int64_t row = base + group, start = row * rows.columns;
    const int columns = row < end ? rows.columns : 0;
    const T *x = row_of<T>(args.x, start), *dy = row_of<T>(args.dy, start);
    Pack<T, N> packs_x[P], packs_dy[P];
#pragma unroll
    for (int k = 0; k < P; ++k) {
      const int column = first + k * stride;
      if (column >= columns) continue;
      packs_x[k] = load_pack<N>(x + column);
      packs_dy[k] = load_pack<N>(dy + column);
    }
    const float mean = columns > 0 && args.mean ? args.mean[row] : 0,
                rstd = columns > 0 ? args.rstd[row] : 0;
    // f(k, column, g = dy * gamma, normalised x)
    const auto each = [&](const auto& f) {
#pragma unroll
      for (int k = 0; k < P; ++k) {
        const int column = first + k * stride;
        if (column >= columns) continue;
        float g[N], normalised[N];
        load(static_cast<const W*>(args.gamma) + column, g);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          g[j] = __fmul_rn(widened(packs_dy[k].v[j]), __fadd_rn(g[j], args.gamma_offset));
          normalised[j] = __fmul_rn(__fsub_rn(widened(packs_x[k].v[j]), mean), rstd);
        }
        f(k, column, g, normalised);
      }
    };
    float sum = 0, projection = 0;
    each([&](int k, int, const float(&g)[N], const float(&normalised)[N]) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float d = widened(packs_dy[k].v[j]);
        sum = __fadd_rn(sum, g[j]);
        projection = __fmaf_rn(g[j], normalised[j], projection);
        gamma_sum[k][j] = __fmaf_rn(d, normalised[j], gamma_sum[k][j]);
        beta_sum[k][j] = __fadd_rn(beta_sum[k][j], d);
      }
    });
    const float average = args.mean
                              ? __fdiv_rn(over_row(sum, rows.warps, room[turn][0], Add{}), width)
                              : 0,
                along = __fdiv_rn(over_row(projection, rows.warps, room[turn][1], Add{}), width);
    keep_packed(packs_x);
    keep_packed(packs_dy);
    each([&](int, int column, const float(&g)[N], const float(&normalised)[N]) {
      store_gradient<T, drops>(args, start, column, {rstd, average, along}, g, normalised,
                               [&] { return RandomRow(args.dropout, row); });
    });
  }
  add_in_turn(gamma_sum, beta_sum, group, groups, first, stride, rows.columns, totals);
  for (int i = thread; i < 2 * rows.columns; i += kThreads)
    args.partial[2 * static_cast<std::int64_t>(rows.columns) * blockIdx.x + i] = totals[i];
}

bool moves_vectors(const LayerNormBackwardLaunch& args) {
  return args.columns % kVector == 0 &&
         aligned16(args.dy, args.x, args.residual, args.dx, args.branch, args.gamma);
}

cudaError_t launch_whole(const LayerNormBackwardLaunch& args, cudaStream_t stream) {
  const Rows rows = share_rows(args.rows, args.columns, true);
  const std::int64_t rows_a_part = (args.rows + args.parts - 1) / args.parts;
  const auto blocks = static_cast<unsigned>(args.parts);
  const std::size_t totals = 2 * static_cast<std::size_t>(args.columns) * sizeof(float);
  const bool three = args.columns <= std::int64_t{3} * 32 * kVector * rows.warps;
  return with_types(args.type, args.weight_type, true, [&](auto t, auto w, auto) {
    using T = decltype(t);
    using W = decltype(w);
    const auto launch = [&](auto packs, auto drops) {
      return launch_kernel(layer_norm_backward_whole_kernel<T, W, packs(), drops()>, blocks,
                           kThreads, totals, stream, args, rows, rows_a_part);
    };
    const auto with_packs = [&](auto packs) {
      return args.branch ? launch(packs, std::true_type{}) : launch(packs, std::false_type{});
    };
    return three ? with_packs(std::integral_constant<int, 3>{})
                 : with_packs(std::integral_constant<int, 4>{});
  });
}

}  // namespace

cudaError_t launch_layer_norm_backward(const LayerNormBackwardLaunch& args, cudaStream_t stream) {
  if (args.parts > 0) return launch_whole(args, stream);
  const bool vectors = moves_vectors(args);
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

std::int64_t layer_norm_backward_parts(const LayerNormBackwardLaunch& args) {
  if (!moves_vectors(args) || args.columns > kMostColumns) return 0;
  // One wave of blocks, two on each of an H100's multiprocessors. At least four rows per group of
  // warps, since otherwise partial sums would add noticeable traffic.
  constexpr std::int64_t kBlocks = 264;
  const std::int64_t least = 4 * (kWarps / share_rows(args.rows, args.columns, true).warps),
                     most = (args.rows + least - 1) / least;
  return most < kBlocks ? most : kBlocks;
}

}  // namespace shoal::kernels
