// Attention backward: first delta, then the gradients of keys and values, then those of queries.
#include "shoal/kernels/cuda/attention_tiles.cuh"

namespace shoal::kernels {
namespace {

// Per query: log_sum_exp · log2 e (inf if it saw no key), and delta = sum over head_dim of
// dout·out.
struct alignas(8) QueryNumbers {
  float shift, delta;
};
__device__ inline QueryNumbers* numbers(const FlashArgs& a) {
  return reinterpret_cast<QueryNumbers*>(a.delta);
}

// One warp per row.
template <typename T>
__global__ void __launch_bounds__(256) delta_kernel(FlashArgs a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= static_cast<std::int64_t>(a.batch) * a.heads * a.queries) return;
  // Rows are in memory order, [B, queries, heads].
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
  if (lane != 0) return;
  const std::int64_t at_query = (batch * a.heads + head) * a.queries + query;
  const float log_sum_exp = a.log_sum_exp[at_query];
  numbers(a)[at_query] = {log_sum_exp == -kInfinity ? kInfinity : log_sum_exp * kLog2E, sum};
}

// Turns a score `p` into its probability after dropout, without dropout's scale. Turns `dp`, the
// gradient of the probability after dropout, into the score's gradient.
template <bool kCapped>
struct ScoreGradient {
  float scale, keep_scale, soft_cap;

  // The query must see the key.
  __device__ void operator()(const QueryNumbers& query, bool drops, bool kept, float& p,
                             float& dp) const {
    float unit = scale, slope = scale;  // p · unit: the score
    if constexpr (kCapped) {
      p = tanhf(p * (scale / soft_cap));
      unit = soft_cap;
      slope = scale * fmaf(-p, p, 1.0f);
    }
    const float probability = exp2_quick(fmaf(p, unit * kLog2E, -query.shift));
    const float after = drops ? kept ? dp * keep_scale : 0.0f : dp;
    p = drops && !kept ? 0.0f : probability;
    dp = probability * (after - query.delta) * slope;
  }
};

template <typename T, int kDim, bool kRanges, bool kCapped>
__global__ void __launch_bounds__(QueryTiles<T, kDim>::kThreads)
    query_gradient_kernel(FlashArgs a) {
  using S = QueryTiles<T, kDim>;
  const int tiles = (a.queries + S::kRows - 1) / S::kRows;
  Place p = place(a, tiles, 1);
  p.tile = tiles - 1 - p.tile;
  const Room<S, T, 2> room;
  const T* k = head_of<T>(a.k, p, a.head_dim);
  const T* v = head_of<T>(a.v, p, a.head_dim);
  const int lane = static_cast<int>(threadIdx.x) % 32, block_row = p.tile * S::kRows,
            warp_row = static_cast<int>(threadIdx.x) / 32 * S::kWarpRows,
            query = block_row + warp_row;
  const int last = min(block_row + S::kRows, a.queries) - 1;
  const int begin = kRanges ? keys_of<kRanges>(a, p, block_row).begin / S::kColumns : 0,
            steps = (keys_of<kRanges>(a, p, last).end + S::kColumns - 1) / S::kColumns;

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
  fetch(begin);
  QueryNumbers of_query[S::kMatrices][2];
#pragma unroll
  for (int m = 0; m < S::kMatrices; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int q = query + 16 * m + 8 * half + lane / 4;
      of_query[m][half] =
          q < a.queries ? numbers(a)[p.head_row + q] : QueryNumbers{kInfinity, 0.0f};
    }
  const ScoreGradient<kCapped> gradient{a.scale, a.keep_scale, a.soft_cap};
  const bool drops = a.kept != nullptr;
  typename S::template Sums<kDim> dq = {};
  for (int step = begin; step < steps; ++step) {
    fetch(step + 1);
    const int key = step * S::kColumns;
    Bits<S> seen[S::kMatrices][2], kept[S::kMatrices][2];
    const bool whole = scores_that_count<S, kRanges>(a, p, query, key, seen, kept);
    wait_for_copies<1>();
    __syncthreads();
    typename S::Scores s, dp;
    dot_rows<S>(s, room.rows(0) + warp_row * S::kStride, room.columns(step, 0));
    dot_rows<S>(dp, room.rows(1) + warp_row * S::kStride, room.columns(step, 1));
#pragma unroll
    for (int m = 0; m < S::kMatrices; ++m) {
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          gradient(of_query[m][e / 2], drops, kept[m][e / 2](n, e % 2), s[m][n][e], dp[m][n][e]);
      if (whole) continue;
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) dp[m][n][e] = seen[m][e / 2](n, e % 2) ? dp[m][n][e] : 0.0f;
    }
    add_product<S, kDim>(dq, dp, room.columns(step, 0), room.patch());
    __syncthreads();
  }
  wait_for_copies<0>();
  float factor[S::kMatrices][2];
#pragma unroll
  for (int m = 0; m < S::kMatrices; ++m) factor[m][0] = factor[m][1] = 1;
  store_rows<S, kDim>(dq, factor, head_of<T>(a.dq, p, a.head_dim), a.dq.row, query, a.queries, 0,
                      a);
}

// Data that a lane needs about its two queries in each group of eight columns.
template <typename S>
struct QueryColumns {
  QueryNumbers numbers[S::kColumns / 8][2];
  std::uint32_t kept[S::kColumns / 8][2];  // bits of the warp's keys, the lane's first key in bit 0

  // Loads queries [query, query + columns). `from` and `bits` (null: no dropout) point to the
  // lane's first query in tile 0. `shift`: bit of the lane's first key in its word.
  __device__ void load(const QueryNumbers* from, const std::uint32_t* bits, int words, int shift,
                       int query, int queries) {
    from += query;
    const int left = queries - query - static_cast<int>(threadIdx.x) % 4 * 2;
    if (bits) bits += static_cast<std::int64_t>(query) * words;
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool present = n * 8 + e < left;
        numbers[n][e] = present ? from[n * 8 + e] : QueryNumbers{kInfinity, 0.0f};
        if (bits) kept[n][e] = present ? bits[(n * 8 + e) * words] >> shift : 0;
      }
  }
};

// The queries that see a key of [begin, end). Query i sees keys up to i + `behind`.
template <bool kRanges>
__device__ __forceinline__ FlashRange queries_of_keys(const FlashArgs& a, const Place& p, int begin,
                                                      int end, int behind) {
  if constexpr (kRanges)
    return {queries_of<true>(a, p, begin).begin, queries_of<true>(a, p, end - 1).end};
  return {a.causal ? max(0, begin - behind) : 0, a.queries};
}

// Sets `shown` for the warp's keys from `key` on. `shown` is the same for every tile of queries.
// Returns true if all of the warp's keys are visible.
template <int kMatrices>
__device__ __forceinline__ bool visible_keys(const FlashArgs& a, const Place& p, int key,
                                             bool (&shown)[kMatrices][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool all_shown = true;
#pragma unroll
  for (int m = 0; m < kMatrices; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = key + 16 * m + 8 * half + lane / 4;
      bool one = k < a.keys;
      if (a.key_lengths) one = one && k < a.key_lengths[p.batch];
      if (a.key_mask) one = one && a.key_mask[static_cast<std::int64_t>(p.batch) * a.keys + k] != 0;
      shown[m][half] = one;
      all_shown = all_shown && one;
    }
  return __ballot_sync(0xffffffffu, all_shown) == 0xffffffffu;
}

// True if the queries of the tile at `query` all exist and see all of the warp's keys from `key`
// on, as far as order and sequences decide. Query i sees keys up to i + `behind`.
template <typename S, bool kRanges>
__device__ __forceinline__ bool all_see(const FlashArgs& a, const Place& p, int key, int query,
                                        int behind) {
  const bool all =
      query + S::kColumns <= a.queries && (!a.causal || key + S::kWarpRows - 1 <= query + behind);
  if constexpr (kRanges)
    return all && query >= queries_of<true>(a, p, key + S::kWarpRows - 1).begin &&
           query + S::kColumns <= queries_of<true>(a, p, key).end;
  return all;
}

// Sets the probabilities `s` and gradients `dp` of a matrix to 0 where a query of the tile at
// `query` does not see a key. `key`: the matrix's first key; query i sees keys up to i + `behind`.
template <typename S, bool kRanges, int kParts>
__device__ __forceinline__ void hide_unseen(const FlashArgs& a, const Place& p, int key, int query,
                                            int behind, const bool (&shown)[2],
                                            float (&s)[kParts][4], float (&dp)[kParts][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Bits<S> everything;
#pragma unroll
  for (int i = 0; i < S::kWords; ++i) everything.word[i] = 0xffffffffu;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = key + 8 * half + lane / 4;
    // Range of queries that see key k, relative to the tile.
    int low = a.causal ? k - behind - query : 0, high = shown[half] ? a.queries - query : 0;
    if constexpr (kRanges) {
      const FlashRange seen_by = shown[half] ? queries_of<true>(a, p, k) : FlashRange{0, 0};
      low = seen_by.begin - query, high = seen_by.end - query;
    }
    const Bits<S> seen = columns_between(low, high, everything).of_lane();
#pragma unroll
    for (int n = 0; n < kParts; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool counts = seen(n, e);
        s[n][2 * half + e] = counts ? s[n][2 * half + e] : 0.0f;
        dp[n][2 * half + e] = counts ? dp[n][2 * half + e] : 0.0f;
      }
  }
}

// Rows are keys and columns are queries, so scores are transposed.
template <typename T, int kDim, bool kRanges, bool kCapped>
__global__ void __launch_bounds__(KeyTiles<T, kDim>::kThreads) key_gradient_kernel(FlashArgs a) {
  using S = KeyTiles<T, kDim>;
  constexpr int kPart = kKeyPart<kDim>;
  const Place p = place(a, (a.keys + S::kRows - 1) / S::kRows, kDim / kPart);
  const Room<S, T, 2> room;
  const T *q = head_of<T>(a.q, p, a.head_dim), *dout = head_of<T>(a.dout, p, a.head_dim);
  const int lane = static_cast<int>(threadIdx.x) % 32, block_row = p.tile * S::kRows,
            warp_row = static_cast<int>(threadIdx.x) / 32 * S::kWarpRows,
            key = block_row + warp_row;
  const int behind = a.keys - a.queries;  // query i sees keys up to i + behind
  const FlashRange queries =
      queries_of_keys<kRanges>(a, p, block_row, min(block_row + S::kRows, a.keys), behind);
  const int end = (queries.end + S::kColumns - 1) / S::kColumns,
            begin = queries.begin / S::kColumns;

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
  bool shown[S::kMatrices][2];
  const bool all_shown = visible_keys(a, p, key, shown);
  const ScoreGradient<kCapped> gradient{a.scale, a.keep_scale, a.soft_cap};
  const bool drops = a.kept != nullptr;
  const std::int64_t first_query = p.head_row + lane % 4 * 2;
  const QueryNumbers* of_queries = numbers(a) + first_query;
  // If all of a warp's keys are out of range, it reads the bits of the last word.
  const std::uint32_t* bits =
      drops ? a.kept + first_query * a.kept_words + min(key / 32, a.kept_words - 1) : nullptr;
  typename S::template Sums<kPart> dk = {}, dv = {};
  for (int step = begin; step < end; ++step) {
    fetch(step + 1);
    const int query = step * S::kColumns;
    QueryColumns<S> of_query;
    of_query.load(of_queries, bits, a.kept_words, key % 32 + lane / 4, query, a.queries);
    const bool whole = all_shown && all_see<S, kRanges>(a, p, key, query, behind);
    wait_for_copies<1>();
    __syncthreads();
    typename S::Scores s, dp;
    dot_rows<S>(s, room.rows(0) + warp_row * S::kStride, room.columns(step, 0));
    dot_rows<S>(dp, room.rows(1) + warp_row * S::kStride, room.columns(step, 1));
#pragma unroll
    for (int m = 0; m < S::kMatrices; ++m) {
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          gradient(of_query.numbers[n][e % 2], drops,
                   (of_query.kept[n][e % 2] >> (16 * m + 8 * (e / 2)) & 1u) != 0, s[m][n][e],
                   dp[m][n][e]);
      if (!whole) hide_unseen<S, kRanges>(a, p, key + 16 * m, query, behind, shown[m], s[m], dp[m]);
    }
    add_product<S, kPart>(dv, s, room.columns(step, 1) + p.part * kPart, room.patch());
    add_product<S, kPart>(dk, dp, room.columns(step, 0) + p.part * kPart, room.patch());
    __syncthreads();
  }
  wait_for_copies<0>();
  float one[S::kMatrices][2], keep[S::kMatrices][2];
#pragma unroll
  for (int m = 0; m < S::kMatrices; ++m) {
    one[m][0] = one[m][1] = 1;
    keep[m][0] = keep[m][1] = a.keep_scale;
  }
  const int from = p.part * kPart;
  store_rows<S, kPart>(dk, one, head_of<T>(a.dk, p, a.head_dim), a.dk.row, key, a.keys, from, a);
  store_rows<S, kPart>(dv, keep, head_of<T>(a.dv, p, a.head_dim), a.dv.row, key, a.keys, from, a);
}

template <typename T, int kDim>
cudaError_t backward(const FlashArgs& a, cudaStream_t stream) {
  using Q = QueryTiles<T, kDim>;
  using K = KeyTiles<T, kDim>;
  const cudaError_t status =
      launch<delta_kernel<T>>((blocks_of(a, a.queries, 1) + 7) / 8, 256, 0, a, stream);
  if (status != cudaSuccess) return status;
  return with_form(a, [&]<bool kRanges, bool kCapped>() {
    const cudaError_t keys = launch<key_gradient_kernel<T, kDim, kRanges, kCapped>>(
        blocks_of(a, a.keys, K::kRows) * (kDim / kKeyPart<kDim>), K::kThreads, K::bytes(2), a,
        stream);
    if (keys != cudaSuccess) return keys;
    return launch<query_gradient_kernel<T, kDim, kRanges, kCapped>>(
        blocks_of(a, a.queries, Q::kRows), Q::kThreads, Q::bytes(2), a, stream);
  });
}

}  // namespace

int flash_backward_shared_bytes(FlashType type, int head_dim) {
  int bytes = 0;
  (void)with_kernel(type, head_dim, [&]<typename T, int kDim>() {
    constexpr int kQueries = QueryTiles<T, kDim>::bytes(2), kKeys = KeyTiles<T, kDim>::bytes(2);
    bytes = kQueries > kKeys ? kQueries : kKeys;
    return cudaSuccess;
  });
  return bytes;
}

cudaError_t flash_backward(FlashType type, const FlashArgs& args, cudaStream_t stream) {
  return with_kernel(type, args.head_dim,
                     [&]<typename T, int kDim>() { return backward<T, kDim>(args, stream); });
}

}  // namespace shoal::kernels
