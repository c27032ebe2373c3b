// Attention forward, and the bits of its dropout.
#include "shoal/kernels/cuda/attention_tiles.cuh"
#include "shoal/kernels/cuda/philox.cuh"

namespace shoal::kernels {
namespace {

// The larger or the sum over the four lanes that share a row.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Scores of one column tile become exp2(score·scale - largest) after dropout; the running largest
// (in units of scores) and sum are updated, and what the sums so far must be multiplied with is
// left in shrink.
template <typename S>
__device__ void softmax_tile(float (&s)[S::kColumns / 8][4], const FlashArgs& a, const Place& p,
                             int query, int key, float (&largest)[2], float (&sum)[2],
                             float (&shrink)[2]) {
  const float scale = a.scale * kLog2E;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int q = query + lane / 4 + 8 * half;
    const int seen = q < a.queries ? visible_keys(a, q) : 0;
    float top = largest[half];
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int k = key + n * 8 + lane % 4 * 2 + e;
        float& x = s[n][2 * half + e];
        x = k < seen && unmasked(a, p, k) ? x * scale : -kInfinity;
        top = fmaxf(top, x);
      }
    top = row_max(top);
    // Nothing seen yet: every exponential below is 0 (or NaN, of a score that is).
    const float shift = top == -kInfinity ? 0.0f : top;
    shrink[half] = exp2f(largest[half] - shift);
    largest[half] = top;
    float total = 0;
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int k = key + n * 8 + lane % 4 * 2 + e;
        float& x = s[n][2 * half + e];
        x = exp2f(x - shift);
        total += x;
        if (a.kept && k < seen && !kept(a, p, q, k)) x = 0;
      }
    sum[half] = sum[half] * shrink[half] + row_sum(total);
  }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(ForwardTiles<T, kDim>::kThreads) forward_kernel(FlashArgs a) {
  using S = ForwardTiles<T, kDim>;
  const int tiles = (a.queries + S::kRows - 1) / S::kRows;
  Place p = place(a, tiles, 1);
  p.tile = tiles - 1 - p.tile;  // the longest rows of a causal mask first
  const Room<S, T, 1> room;
  const T* k = head_of<T>(a.k, p, a.head_dim);
  const T* v = head_of<T>(a.v, p, a.head_dim);
  const int block_row = p.tile * S::kRows, warp_row = static_cast<int>(threadIdx.x) / 32 * 16,
            query = block_row + warp_row;
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
  fetch(0);
  float out[kDim / 8][4] = {}, largest[2] = {-kInfinity, -kInfinity}, sum[2] = {0, 0};
  for (int step = 0; step < steps; ++step) {
    fetch(step + 1);
    wait_for_copies<1>();
    __syncthreads();
    float s[S::kColumns / 8][4], shrink[2];
    dot_rows<S>(s, room.rows(0) + warp_row * S::kStride, room.columns(step, 0));
    softmax_tile<S>(s, a, p, query, step * S::kColumns, largest, sum, shrink);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] *= shrink[e / 2];
    add_product<S, kDim>(out, s, room.columns(step, 1), room.patch());
    __syncthreads();
  }
  wait_for_copies<0>();

  const int lane = static_cast<int>(threadIdx.x) % 32;
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int q = query + lane / 4 + 8 * half;
    factor[half] = sum[half] == 0 ? 0.0f : a.keep_scale / sum[half];
    if (a.log_sum_exp && q < a.queries && lane % 4 == 0)
      a.log_sum_exp[p.head_row + q] =
          sum[half] == 0 ? -kInfinity : (largest[half] + log2f(sum[half])) / kLog2E;
  }
  store_rows<kDim>(out, factor, head_of<T>(a.out, p, a.head_dim), a.out.row, query, a.queries, 0,
                   a);
}

// A thread a word of 32 keys of one query.
__global__ void __launch_bounds__(256)
    kept_bits_kernel(FlashArgs a, FlashDropout d, std::uint32_t* kept) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const std::int64_t row = index / a.kept_words;  // (b, h, q)
  if (row >= static_cast<std::int64_t>(a.batch) * a.heads * a.queries) return;
  const int word = static_cast<int>(index % a.kept_words),
            query = static_cast<int>(row % a.queries);
  if (word * 32 >= visible_keys(a, query)) return;  // nobody asks
  const auto head = static_cast<std::int64_t>(row / a.queries % a.heads);
  const auto batch = static_cast<std::uint32_t>(row / a.queries / a.heads);
  const std::int64_t position = query + max(0, a.keys - a.queries);
  const auto element = static_cast<std::uint64_t>(
      ((head + d.head_offset) * d.max_positions + position) * d.max_positions + word * 32);
  const std::uint32_t sample = d.site.sample_first + batch * d.site.sample_stride;
  const PhiloxKey key(d.site);
  std::uint32_t bits = 0;
  const int lane = static_cast<int>(element % 4);
  for (int i = 0; i < (lane == 0 ? 8 : 9); ++i) {
    std::uint32_t random[4];
    philox_block(key, sample, element / 4 + static_cast<std::uint64_t>(i), random);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int bit = 4 * i + j - lane;
      if (bit >= 0 && bit < 32 && random[j] >= d.threshold) bits |= 1u << bit;
    }
  }
  kept[index] = bits;
}

template <typename T, int kDim>
cudaError_t forward(const FlashArgs& a, cudaStream_t stream) {
  using S = ForwardTiles<T, kDim>;
  return launch<forward_kernel<T, kDim>>(blocks_of(a, a.queries, S::kRows), S::kThreads,
                                         S::bytes(1), a, stream);
}

}  // namespace

cudaError_t flash_kept_bits(const FlashArgs& args, const FlashDropout& dropout, std::uint32_t* kept,
                            cudaStream_t stream) {
  const std::int64_t words =
      static_cast<std::int64_t>(args.batch) * args.heads * args.queries * args.kept_words;
  const std::int64_t blocks = (words + 255) / 256;
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  return launch_kernel(kept_bits_kernel, static_cast<unsigned>(blocks), 256, 0, stream, args,
                       dropout, kept);
}

cudaError_t flash_forward(FlashType type, const FlashArgs& args, cudaStream_t stream) {
  return with_kernel(type, args.head_dim,
                     [&]<typename T, int kDim>() { return forward<T, kDim>(args, stream); });
}

}  // namespace shoal::kernels
