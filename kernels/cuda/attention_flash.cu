// Attention forward, and the bits of its dropout.
#include "shoal/kernels/cuda/attention_tiles.cuh"
#include "shoal/kernels/cuda/philox.cuh"

namespace shoal::kernels {
namespace {

// Maximum or sum over the four lanes that share a row.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Turns scores into exp2((score - largest)·scale) after dropout. Updates each row's running largest
// score and the lane's part of its sum, and rescales the sums so far. scale > 0. `whole`: every
// score of the tile is seen; `drops`: there is dropout.
template <typename S>
__device__ void softmax_tile(typename S::Scores& s, typename S::template Sums<S::kDim>& out,
                             float scale, bool whole, const Bits<S> (&seen)[S::kMatrices][2],
                             bool drops, const Bits<S> (&kept)[S::kMatrices][2],
                             float (&largest)[S::kMatrices][2], float (&sum)[S::kMatrices][2]) {
#pragma unroll
  for (int m = 0; m < S::kMatrices; ++m) {
    if (!whole) {
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] = seen[m][e / 2](n, e % 2) ? s[m][n][e] : -kInfinity;
    }
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = largest[m][half];
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n)
        top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      top = row_max(top);
      // If the row has seen no key yet, every exponential below is 0 (or NaN for a NaN score).
      const float shift = top == -kInfinity ? 0.0f : top * scale;
      shrink[half] = exp2_quick(fmaf(largest[m][half], scale, -shift));
      largest[m][half] = top;
      float total = 0;
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[m][n][2 * half + e];
          x = exp2_quick(fmaf(x, scale, -shift));
          total += x;
        }
      sum[m][half] = fmaf(sum[m][half], shrink[half], total);
    }
    if (drops) {
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] = kept[m][e / 2](n, e % 2) ? s[m][n][e] : 0.0f;
    }
#pragma unroll
    for (int n = 0; n < S::kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[m][n][e] *= shrink[e / 2];
  }
}

template <typename T, int kDim, bool kRanges, bool kCapped>
__global__ void __launch_bounds__(ForwardTiles<T, kDim>::kThreads) forward_kernel(FlashArgs a) {
  using S = ForwardTiles<T, kDim>;
  const int tiles = (a.queries + S::kRows - 1) / S::kRows;
  Place p = place(a, tiles, 1);
  p.tile = tiles - 1 - p.tile;  // starts with the tiles that see most keys under a causal mask
  const Room<S, T, 1> room;
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
  fetch(begin);
  typename S::template Sums<kDim> out = {};
  float largest[S::kMatrices][2], sum[S::kMatrices][2];
#pragma unroll
  for (int m = 0; m < S::kMatrices; ++m) {
    largest[m][0] = largest[m][1] = -kInfinity;
    sum[m][0] = sum[m][1] = 0;
  }
  // softmax_tile() needs a positive scale. If the scale is negative, the scores below change sign.
  // If it is 0, a tiny scale makes all scores count as equal. With a soft cap, the scores below
  // include the scale.
  const float scale = kCapped ? kLog2E : fmaxf(fabsf(a.scale) * kLog2E, 1e-30f);
  for (int step = begin; step < steps; ++step) {
    fetch(step + 1);
    const int key = step * S::kColumns;
    Bits<S> seen[S::kMatrices][2], kept[S::kMatrices][2];
    const bool whole = scores_that_count<S, kRanges>(a, p, query, key, seen, kept);
    wait_for_copies<1>();
    __syncthreads();
    typename S::Scores s;
    dot_rows<S>(s, room.rows(0) + warp_row * S::kStride, room.columns(step, 0));
    if constexpr (kCapped) {
      cap_scores<S>(s, a.scale, a.soft_cap);
    } else if (a.scale < 0) {
#pragma unroll
      for (int m = 0; m < S::kMatrices; ++m)
#pragma unroll
        for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[m][n][e] = -s[m][n][e];
    }
    softmax_tile<S>(s, out, scale, whole, seen, a.kept != nullptr, kept, largest, sum);
    add_product<S, kDim>(out, s, room.columns(step, 1), room.patch());
    __syncthreads();
  }
  wait_for_copies<0>();

  float factor[S::kMatrices][2];
#pragma unroll
  for (int m = 0; m < S::kMatrices; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int q = query + 16 * m + 8 * half + lane / 4;
      const float whole_sum = row_sum(sum[m][half]);
      const bool none = whole_sum == 0;
      factor[m][half] = none ? 0.0f : a.keep_scale / whole_sum;
      if (a.log_sum_exp && q < a.queries && lane % 4 == 0)
        a.log_sum_exp[p.head_row + q] =
            none ? -kInfinity : fmaf(largest[m][half], scale, log2f(whole_sum)) / kLog2E;
    }
  store_rows<S, kDim>(out, factor, head_of<T>(a.out, p, a.head_dim), a.out.row, query, a.queries, 0,
                      a);
}

// One thread per token. Its sequence is the last one in the row that begins at or before it.
__global__ void __launch_bounds__(256)
    token_ranges_kernel(const std::int32_t* sequences, int count, std::int64_t tokens, int length,
                        FlashRange* ranges) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (token >= tokens) return;
  const std::int32_t* const row = sequences + token / length * count;
  const int position = static_cast<int>(token % length);
  int low = 0, high = count;  // index of the first sequence that begins after the token
  while (low < high) {
    const int middle = (low + high) / 2;
    if (row[middle] > position)
      high = middle;
    else
      low = middle + 1;
  }
  FlashRange range{0, 0};
  if (low > 0) range = {row[low - 1], low < count ? row[low] : length};
  if (range.begin < 0 || range.end > length) range = {0, 0};
  ranges[token] = range;
}

// One thread per word, which holds 32 keys of one query.
__global__ void __launch_bounds__(256)
    kept_bits_kernel(FlashArgs a, FlashDropout d, std::uint32_t* kept) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const std::int64_t row = index / a.kept_words;  // (b, h, q)
  if (row >= static_cast<std::int64_t>(a.batch) * a.heads * a.queries) return;
  const int word = static_cast<int>(index % a.kept_words),
            query = static_cast<int>(row % a.queries);
  if (word * 32 >= visible_keys(a, a.keys, query)) return;  // causality hides these keys
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
  return with_form(a, [&]<bool kRanges, bool kCapped>() {
    return launch<forward_kernel<T, kDim, kRanges, kCapped>>(blocks_of(a, a.queries, S::kRows),
                                                             S::kThreads, S::bytes(1), a, stream);
  });
}

}  // namespace

cudaError_t flash_token_ranges(const std::int32_t* sequences, int count, int batch, int length,
                               FlashRange* ranges, cudaStream_t stream) {
  const std::int64_t tokens = static_cast<std::int64_t>(batch) * length,
                     blocks = (tokens + 255) / 256;
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  return launch_kernel(token_ranges_kernel, static_cast<unsigned>(blocks), 256, 0, stream,
                       sequences, count, tokens, length, ranges);
}

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

int flash_forward_shared_bytes(FlashType type, int head_dim) {
  int bytes = 0;
  (void)with_kernel(type, head_dim, [&]<typename T, int kDim>() {
    bytes = ForwardTiles<T, kDim>::bytes(1);
    return cudaSuccess;
  });
  return bytes;
}

cudaError_t flash_forward(FlashType type, const FlashArgs& args, cudaStream_t stream) {
  return with_kernel(type, args.head_dim,
                     [&]<typename T, int kDim>() { return forward<T, kDim>(args, stream); });
}

}  // namespace shoal::kernels
