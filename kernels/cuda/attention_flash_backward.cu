// Attention backward: delta, then the gradients of keys and values, then those of queries.
#include "shoal/kernels/cuda/attention_tiles.cuh"

namespace shoal::kernels {
namespace {

// delta = sum over head_dim of dout·out, a warp a row.
template <typename T>
__global__ void __launch_bounds__(256) delta_kernel(FlashArgs a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= static_cast<std::int64_t>(a.batch) * a.heads * a.queries) return;
  // Rows in the order [B, queries, heads], which is that of memory.
  const std::int64_t head = row % a.heads, query = row / a.heads % a.queries,
                     batch = row / a.heads / a.queries;
  const auto at = [&](const FlashHeads& h) {
    return static_cast<const T*>(h.data) + batch * h.batch + query * h.row + head * a.head_dim;
  };
  const T *dout = at(a.dout), *out = at(a.out);
  float sum = 0;
  for (int d = lane; d < a.head_dim; d += 32) sum += to_float(dout[d]) * to_float(out[d]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane == 0) a.delta[(batch * a.heads + head) * a.queries + query] = sum;
}

// One element's probability after dropout and the gradient of its score, from the score s and the
// gradient dp of the probability after dropout.
__device__ inline void gradient_of_score(const FlashArgs& a, const Place& p, int query, int key,
                                         float log_sum_exp, float delta, bool seen, float& s,
                                         float& dp) {
  // log_sum_exp is -inf where a query saw nothing.
  const bool counts = seen && log_sum_exp != -kInfinity;
  const float probability = counts ? exp2f((s * a.scale - log_sum_exp) * kLog2E) : 0.0f;
  s = probability;
  if (counts && a.kept) {
    const float keep = kept(a, p, query, key) ? a.keep_scale : 0.0f;
    s *= keep;
    dp *= keep;
  }
  dp = probability == 0 ? 0.0f : probability * (dp - delta) * a.scale;
}

template <typename T, int kDim>
__global__ void __launch_bounds__(ForwardTiles<T, kDim>::kThreads)
    query_gradient_kernel(FlashArgs a) {
  using S = ForwardTiles<T, kDim>;
  const int tiles = (a.queries + S::kRows - 1) / S::kRows;
  Place p = place(a, tiles, 1);
  p.tile = tiles - 1 - p.tile;
  const Room<S, T, 2> room;
  const T* k = head_of<T>(a.k, p, a.head_dim);
  const T* v = head_of<T>(a.v, p, a.head_dim);
  const int lane = static_cast<int>(threadIdx.x) % 32, block_row = p.tile * S::kRows,
            warp_row = static_cast<int>(threadIdx.x) / 32 * 16, query = block_row + warp_row;
  const int last = min(block_row + S::kRows, a.queries) - 1;
  const int steps = (visible_keys(a, last) + S::kColumns - 1) / S::kColumns;

  const auto fetch = [&](int step) {
    if (step < steps) {
      load_rows<S, S::kColumns>(room.columns(step, 0), k, a.k.row, step * S::kColumns, a.keys, a);
      load_rows<S, S::kColumns>(room.columns(step, 1), v, a.v.row, step * S::kColumns, a.keys, a);
    }
    end_copies();
  };
  load_rows<S, S::kRows>(room.rows(0), head_of<const T>(a.q, p, a.head_dim), a.q.row, block_row,
                         a.queries, a);
  load_rows<S, S::kRows>(room.rows(1), head_of<const T>(a.dout, p, a.head_dim), a.dout.row,
                         block_row, a.queries, a);
  fetch(0);
  float log_sum_exp[2], delta[2];
  int seen[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int q = query + lane / 4 + 8 * half;
    seen[half] = q < a.queries ? visible_keys(a, q) : 0;
    log_sum_exp[half] = q < a.queries ? a.log_sum_exp[p.head_row + q] : 0.0f;
    delta[half] = q < a.queries ? a.delta[p.head_row + q] : 0.0f;
  }
  float dq[kDim / 8][4] = {};
  for (int step = 0; step < steps; ++step) {
    fetch(step + 1);
    wait_for_copies<1>();
    __syncthreads();
    float s[S::kColumns / 8][4], dp[S::kColumns / 8][4];
    dot_rows<S>(s, room.rows(0) + warp_row * S::kStride, room.columns(step, 0));
    dot_rows<S>(dp, room.rows(1) + warp_row * S::kStride, room.columns(step, 1));
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = step * S::kColumns + n * 8 + lane % 4 * 2 + e % 2;
        gradient_of_score(a, p, query + lane / 4 + 8 * (e / 2), key, log_sum_exp[e / 2],
                          delta[e / 2], key < seen[e / 2] && unmasked(a, p, key), s[n][e],
                          dp[n][e]);
      }
    add_product<S, kDim>(dq, dp, room.columns(step, 0), room.patch());
    __syncthreads();
  }
  wait_for_copies<0>();
  const float factor[2] = {1, 1};
  store_rows<kDim>(dq, factor, head_of<T>(a.dq, p, a.head_dim), a.dq.row, query, a.queries, 0, a);
}

// Rows are keys, columns queries: scores are transposed.
template <typename T, int kDim>
__global__ void __launch_bounds__(KeyTiles<T, kDim>::kThreads) key_gradient_kernel(FlashArgs a) {
  using S = KeyTiles<T, kDim>;
  constexpr int kPart = kKeyPart<kDim>;
  const Place p = place(a, (a.keys + S::kRows - 1) / S::kRows, kDim / kPart);
  const Room<S, T, 2> room;
  const T* q = head_of<T>(a.q, p, a.head_dim);
  const T* dout = head_of<T>(a.dout, p, a.head_dim);
  const int lane = static_cast<int>(threadIdx.x) % 32, block_row = p.tile * S::kRows,
            warp_row = static_cast<int>(threadIdx.x) / 32 * 16, key = block_row + warp_row;
  // Earlier queries see none of these keys.
  const int first = a.causal ? max(0, block_row - (a.keys - a.queries)) : 0;
  const int begin = first / S::kColumns, end = (a.queries + S::kColumns - 1) / S::kColumns;

  const auto fetch = [&](int step) {
    if (step < end) {
      load_rows<S, S::kColumns>(room.columns(step, 0), q, a.q.row, step * S::kColumns, a.queries,
                                a);
      load_rows<S, S::kColumns>(room.columns(step, 1), dout, a.dout.row, step * S::kColumns,
                                a.queries, a);
    }
    end_copies();
  };
  load_rows<S, S::kRows>(room.rows(0), head_of<const T>(a.k, p, a.head_dim), a.k.row, block_row,
                         a.keys, a);
  load_rows<S, S::kRows>(room.rows(1), head_of<const T>(a.v, p, a.head_dim), a.v.row, block_row,
                         a.keys, a);
  fetch(begin);
  bool usable[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = key + lane / 4 + 8 * half;
    usable[half] = k < a.keys && unmasked(a, p, k);
  }
  float dk[kPart / 8][4] = {}, dv[kPart / 8][4] = {};
  for (int step = begin; step < end; ++step) {
    fetch(step + 1);
    wait_for_copies<1>();
    __syncthreads();
    float s[S::kColumns / 8][4], dp[S::kColumns / 8][4];
    dot_rows<S>(s, room.rows(0) + warp_row * S::kStride, room.columns(step, 0));
    dot_rows<S>(dp, room.rows(1) + warp_row * S::kStride, room.columns(step, 1));
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int query = step * S::kColumns + n * 8 + lane % 4 * 2 + e;
        const bool present = query < a.queries;
        const float log_sum_exp = present ? a.log_sum_exp[p.head_row + query] : 0.0f;
        const float delta = present ? a.delta[p.head_row + query] : 0.0f;
        const int limit = present ? visible_keys(a, query) : 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = key + lane / 4 + 8 * half;
          gradient_of_score(a, p, query, k, log_sum_exp, delta, usable[half] && k < limit,
                            s[n][2 * half + e], dp[n][2 * half + e]);
        }
      }
    add_product<S, kPart>(dv, s, room.columns(step, 1) + p.part * kPart, room.patch());
    add_product<S, kPart>(dk, dp, room.columns(step, 0) + p.part * kPart, room.patch());
    __syncthreads();
  }
  wait_for_copies<0>();
  const float factor[2] = {1, 1};
  const int from = p.part * kPart;
  store_rows<kPart>(dk, factor, head_of<T>(a.dk, p, a.head_dim), a.dk.row, key, a.keys, from, a);
  store_rows<kPart>(dv, factor, head_of<T>(a.dv, p, a.head_dim), a.dv.row, key, a.keys, from, a);
}

template <typename T, int kDim>
cudaError_t backward(const FlashArgs& a, cudaStream_t stream) {
  using Q = ForwardTiles<T, kDim>;
  using K = KeyTiles<T, kDim>;
  cudaError_t status =
      launch<delta_kernel<T>>((blocks_of(a, a.queries, 1) + 7) / 8, 256, 0, a, stream);
  if (status != cudaSuccess) return status;
  status =
      launch<key_gradient_kernel<T, kDim>>(blocks_of(a, a.keys, K::kRows) * (kDim / kKeyPart<kDim>),
                                           K::kThreads, K::bytes(2), a, stream);
  if (status != cudaSuccess) return status;
  return launch<query_gradient_kernel<T, kDim>>(blocks_of(a, a.queries, Q::kRows), Q::kThreads,
                                                Q::bytes(2), a, stream);
}

}  // namespace

cudaError_t flash_backward(FlashType type, const FlashArgs& args, cudaStream_t stream) {
  return with_kernel(type, args.head_dim,
                     [&]<typename T, int kDim>() { return backward<T, kDim>(args, stream); });
}

}  // namespace shoal::kernels
