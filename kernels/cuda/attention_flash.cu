// A block is a tile of rows (queries; in the gradient of keys and values, keys), 16 a warp, that
// stays in shared memory while tiles of columns (the other) stream past, the next one being copied
// while one is worked on. Scores of a warp are [16, columns] in registers, in the layout of
// mma.cuh.
#include "shoal/kernels/cuda/attention_flash.cuh"
#include "shoal/kernels/cuda/mma.cuh"

namespace shoal::kernels {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
#define SHOAL_INFINITY __int_as_float(0x7f800000)

// Sizes of a kernel's tiles; kDim is head_dim rounded up. A row in shared memory is 16 bytes longer
// than kDim, so that eight rows of a matrix lie in different banks.
template <typename T, int kDimension, int kColumnsOfTile>
struct Tiles {
  static constexpr bool kTensorCores = sizeof(T) == 2;
  static constexpr int kDim = kDimension, kColumns = kColumnsOfTile;
  static constexpr int kWarps = !kTensorCores && kDim > 128 ? 2 : 4;
  static constexpr int kThreads = 32 * kWarps, kRows = 16 * kWarps;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  static constexpr int kStride = kDim + kVector;
  // f32: where a warp lays its scores down for the second product.
  static constexpr int kPatchStride = kColumns + 4;
  static constexpr int kPatch = kTensorCores ? 0 : 16 * kPatchStride;

  static constexpr int bytes(int row_tiles) {
    return static_cast<int>(sizeof(T)) *
           (row_tiles * kRows * kStride + 4 * kColumns * kStride + kWarps * kPatch);
  }
};
template <typename T>
constexpr int columns_for(int dim, bool two_sums) {
  return sizeof(T) == 4 ? (dim > 128 ? 16 : 32) : (dim > (two_sums ? 64 : 128) ? 32 : 64);
}

// What a block works on.
struct Place {
  int tile, part, head, batch;
  std::int64_t head_row;  // of log_sum_exp, delta and kept: (batch·heads + head)·queries
};
__device__ Place place(const FlashArgs& a, int tiles, int parts) {
  Place p;
  int index = static_cast<int>(blockIdx.x);
  p.tile = index % tiles, index /= tiles;
  p.part = index % parts, index /= parts;
  p.head = index % a.heads, p.batch = index / a.heads;
  p.head_row = (static_cast<std::int64_t>(p.batch) * a.heads + p.head) * a.queries;
  return p;
}

template <typename T>
__device__ T* head_of(const FlashHeads& h, const Place& p, int head_dim) {
  return static_cast<T*>(h.data) + p.batch * h.batch + static_cast<std::int64_t>(p.head) * head_dim;
}

// Keys [0, this) are not cut off by causality.
__device__ inline int visible_keys(const FlashArgs& a, int query) {
  if (!a.causal) return a.keys;
  const int end = query + a.keys - a.queries + 1;
  return end < 0 ? 0 : end < a.keys ? end : a.keys;
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }
template <typename T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

// Starts copying rows [first, first + kCount) of a head to `tile`; zeros beyond the last row and
// column. Ends no group.
template <typename S, int kCount, typename T>
__device__ void load_rows(T* tile, const T* head, std::int64_t row_stride, int first, int rows,
                          const FlashArgs& a) {
  if (a.vectors) {
    constexpr int kVectors = S::kDim / S::kVector;
    for (int i = static_cast<int>(threadIdx.x); i < kCount * kVectors; i += S::kThreads) {
      const int row = i / kVectors, column = i % kVectors * S::kVector;
      const bool inside = first + row < rows && column < a.head_dim;
      copy_async(tile + row * S::kStride + column,
                 inside ? head + (first + row) * row_stride + column : head, inside);
    }
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kCount * S::kDim; i += S::kThreads) {
    const int row = i / S::kDim, column = i % S::kDim;
    const bool inside = first + row < rows && column < a.head_dim;
    tile[row * S::kStride + column] =
        inside ? head[(first + row) * row_stride + column] : from_float<T>(0.0f);
  }
}

// c [16, columns] = a [16, kDim] · (b [columns, kDim])ᵀ, both in shared memory.
template <typename S, typename T>
__device__ void dot_rows(float (&c)[S::kColumns / 8][4], const T* a, const T* b) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < S::kColumns / 8; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
  if constexpr (S::kTensorCores) {
    a += lane % 16 * S::kStride + lane / 16 * 8;
    b += (lane / 16 * 8 + lane % 8) * S::kStride + lane / 8 % 2 * 8;
#pragma unroll 4
    for (int k = 0; k < S::kDim / 16; ++k) {
      std::uint32_t left[4];
      load_matrices(left, a + k * 16);
#pragma unroll
      for (int n = 0; n < S::kColumns / 16; ++n) {
        std::uint32_t right[4];
        load_matrices(right, b + n * 16 * S::kStride + k * 16);
        multiply<T>(c[2 * n], left, right[0], right[1]);
        multiply<T>(c[2 * n + 1], left, right[2], right[3]);
      }
    }
  } else {
    a += lane / 4 * S::kStride;
    b += lane % 4 * 2 * S::kStride;
#pragma unroll 4
    for (int k = 0; k < S::kDim; ++k) {
      const float upper = a[k], lower = a[8 * S::kStride + k];
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n) {
        const float left = b[n * 8 * S::kStride + k], right = b[(n * 8 + 1) * S::kStride + k];
        c[n][0] += upper * left;
        c[n][1] += upper * right;
        c[n][2] += lower * left;
        c[n][3] += lower * right;
      }
    }
  }
}

// sum [16, kOut] += p [16, columns] · b [columns, kOut], p in registers, b in shared memory (from
// the first of the wanted columns). f32 passes p through `patch`, the warp's own.
template <typename S, int kOut, typename T>
__device__ void add_product(float (&sum)[kOut / 8][4], const float (&p)[S::kColumns / 8][4],
                            const T* b, T* patch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (S::kTensorCores) {
    b += lane % 16 * S::kStride + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < S::kColumns / 16; ++k) {
      const std::uint32_t left[4] = {
          pack<T>(p[2 * k][0], p[2 * k][1]), pack<T>(p[2 * k][2], p[2 * k][3]),
          pack<T>(p[2 * k + 1][0], p[2 * k + 1][1]), pack<T>(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < kOut / 16; ++n) {
        std::uint32_t right[4];
        load_matrices_transposed(right, b + k * 16 * S::kStride + n * 16);
        multiply<T>(sum[2 * n], left, right[0], right[1]);
        multiply<T>(sum[2 * n + 1], left, right[2], right[3]);
      }
    }
  } else {
    const int row = lane / 4, column = lane % 4 * 2;
    __syncwarp();  // the patch may still be read
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; ++n) {
      float* to = patch + row * S::kPatchStride + n * 8 + column;
      to[0] = p[n][0];
      to[1] = p[n][1];
      to[8 * S::kPatchStride] = p[n][2];
      to[8 * S::kPatchStride + 1] = p[n][3];
    }
    __syncwarp();
#pragma unroll 2
    for (int k = 0; k < S::kColumns; ++k) {
      const float upper = patch[row * S::kPatchStride + k],
                  lower = patch[(row + 8) * S::kPatchStride + k];
      const T* from = b + k * S::kStride + column;
#pragma unroll
      for (int n = 0; n < kOut / 8; ++n) {
        sum[n][0] += upper * from[n * 8];
        sum[n][1] += upper * from[n * 8 + 1];
        sum[n][2] += lower * from[n * 8];
        sum[n][3] += lower * from[n * 8 + 1];
      }
    }
  }
}

// Writes a warp's [16, kOut] sums, times a factor a half, as rows of a head from `row` on and
// columns from `first` on.
template <int kOut, typename T>
__device__ void store_rows(const float (&sum)[kOut / 8][4], const float (&factor)[2], T* head,
                           std::int64_t row_stride, int row, int rows, int first,
                           const FlashArgs& a) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + lane / 4 + 8 * half;
    if (r >= rows) continue;
    T* to = head + r * row_stride;
#pragma unroll
    for (int n = 0; n < kOut / 8; ++n) {
      const int column = first + n * 8 + lane % 4 * 2;
      const float low = sum[n][2 * half] * factor[half], high = sum[n][2 * half + 1] * factor[half];
      if constexpr (sizeof(T) == 2) {
        if (a.vectors) {
          if (column < a.head_dim)
            *reinterpret_cast<std::uint32_t*>(to + column) = pack<T>(low, high);
          continue;
        }
      }
      if (column < a.head_dim) to[column] = from_float<T>(low);
      if (column + 1 < a.head_dim) to[column + 1] = from_float<T>(high);
    }
  }
}

// Whether a query sees a key, the causal limit aside.
__device__ inline bool unmasked(const FlashArgs& a, const Place& p, int key) {
  return !a.key_mask || a.key_mask[static_cast<std::int64_t>(p.batch) * a.keys + key] != 0;
}
__device__ inline bool kept(const FlashArgs& a, const Place& p, int query, int key) {
  const std::uint32_t word = a.kept[(p.head_row + query) * a.kept_words + key / 32];
  return (word >> (key % 32) & 1u) != 0;
}

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
        x = k < seen && unmasked(a, p, k) ? x * scale : -SHOAL_INFINITY;
        top = fmaxf(top, x);
      }
    top = row_max(top);
    // Nothing seen yet: every exponential below is 0 (or NaN, of a score that is).
    const float shift = top == -SHOAL_INFINITY ? 0.0f : top;
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

// Shared memory of a block: tiles of rows, two stages of two tiles of columns, patches.
template <typename S, typename T, int kRowTiles>
struct Room {
  T* memory;
  __device__ explicit Room(unsigned char* bytes) : memory(reinterpret_cast<T*>(bytes)) {}
  __device__ T* rows(int which) const { return memory + which * S::kRows * S::kStride; }
  __device__ T* columns(int step, int which) const {
    return rows(kRowTiles) + (step % 2 * 2 + which) * S::kColumns * S::kStride;
  }
  __device__ T* patch() const {  // of this warp
    return columns(2, 0) + 4 * S::kColumns * S::kStride +
           static_cast<int>(threadIdx.x) / 32 * S::kPatch;
  }
};

extern __shared__ __align__(16) unsigned char flash_memory[];

template <typename T, int kDim>
using ForwardTiles = Tiles<T, kDim, columns_for<T>(kDim, false)>;
template <typename T, int kDim>
using KeyTiles = Tiles<T, kDim, columns_for<T>(kDim, true)>;
// Gradients of keys and values need two sums at once: at most this many columns of each.
template <int kDim>
constexpr int kKeyPart = kDim > 128 ? 128 : kDim;

template <typename T, int kDim>
__global__ void __launch_bounds__(ForwardTiles<T, kDim>::kThreads) forward_kernel(FlashArgs a) {
  using S = ForwardTiles<T, kDim>;
  const int tiles = (a.queries + S::kRows - 1) / S::kRows;
  Place p = place(a, tiles, 1);
  p.tile = tiles - 1 - p.tile;  // the longest rows of a causal mask first
  Room<S, T, 1> room(flash_memory);
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
  float out[kDim / 8][4] = {}, largest[2] = {-SHOAL_INFINITY, -SHOAL_INFINITY}, sum[2] = {0, 0};
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
          sum[half] == 0 ? -SHOAL_INFINITY : (largest[half] + log2f(sum[half])) / kLog2E;
  }
  store_rows<kDim>(out, factor, head_of<T>(a.out, p, a.head_dim), a.out.row, query, a.queries, 0,
                   a);
}

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
  const bool counts = seen && log_sum_exp != -SHOAL_INFINITY;
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
  Room<S, T, 2> room(flash_memory);
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
  Room<S, T, 2> room(flash_memory);
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

// Philox 4x32-10, as kernels/random.cc.
__device__ void philox_block(std::uint64_t key, std::uint32_t (&c)[4]) {
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
    const std::uint32_t high1 = __umulhi(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
    c[0] = high1 ^ c[1] ^ key0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ key1;
    c[3] = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
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
  const std::uint32_t sample = d.sample_first + batch * d.sample_stride,
                      step = d.step ? *d.step : 0;
  std::uint32_t bits = 0;
  const int lane = static_cast<int>(element % 4);
  for (int i = 0; i < (lane == 0 ? 8 : 9); ++i) {
    const std::uint64_t block = element / 4 + static_cast<std::uint64_t>(i);
    std::uint32_t random[4] = {static_cast<std::uint32_t>(block),
                               (sample << 8) | (static_cast<std::uint32_t>(block >> 32) & 0xffu),
                               d.site, step};
    philox_block(d.seed, random);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int bit = 4 * i + j - lane;
      if (bit >= 0 && bit < 32 && random[j] >= d.threshold) bits |= 1u << bit;
    }
  }
  kept[index] = bits;
}

// Launches with dynamic shared memory above the default limit.
cudaError_t launch(void (*kernel)(FlashArgs), std::int64_t blocks, int threads, int bytes,
                   const FlashArgs& args, cudaStream_t stream) {
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  const void* entry = reinterpret_cast<const void*>(kernel);
  if (bytes > 48 * 1024) {
    const cudaError_t status =
        cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
  }
  FlashArgs copy = args;
  void* parameters[] = {&copy};
  return cudaLaunchKernel(entry, dim3(static_cast<unsigned>(blocks)),
                          dim3(static_cast<unsigned>(threads)), parameters,
                          static_cast<std::size_t>(bytes), stream);
}

std::int64_t blocks_of(const FlashArgs& a, int length, int rows) {
  return static_cast<std::int64_t>(a.batch) * a.heads * ((length + rows - 1) / rows);
}

template <typename T, int kDim>
cudaError_t forward(const FlashArgs& a, cudaStream_t stream) {
  using S = ForwardTiles<T, kDim>;
  return launch(forward_kernel<T, kDim>, blocks_of(a, a.queries, S::kRows), S::kThreads,
                S::bytes(1), a, stream);
}

template <typename T, int kDim>
cudaError_t backward(const FlashArgs& a, cudaStream_t stream) {
  using Q = ForwardTiles<T, kDim>;
  using K = KeyTiles<T, kDim>;
  cudaError_t status =
      launch(delta_kernel<T>, (blocks_of(a, a.queries, 1) + 7) / 8, 256, 0, a, stream);
  if (status != cudaSuccess) return status;
  status =
      launch(key_gradient_kernel<T, kDim>, blocks_of(a, a.keys, K::kRows) * (kDim / kKeyPart<kDim>),
             K::kThreads, K::bytes(2), a, stream);
  if (status != cudaSuccess) return status;
  return launch(query_gradient_kernel<T, kDim>, blocks_of(a, a.queries, Q::kRows), Q::kThreads,
                Q::bytes(2), a, stream);
}

// call.operator()<T, kDim>() for the type and the rounded head_dim.
template <typename T, typename Call>
cudaError_t with_dim(int head_dim, const Call& call) {
  if (head_dim <= 64) return call.template operator()<T, 64>();
  if (head_dim <= 128) return call.template operator()<T, 128>();
  if (head_dim <= kFlashMaxHeadDim) return call.template operator()<T, 256>();
  return cudaErrorInvalidValue;
}
template <typename Call>
cudaError_t with_kernel(FlashType type, int head_dim, const Call& call) {
  if (type == FlashType::f32) return with_dim<float>(head_dim, call);
  if (type == FlashType::bf16) return with_dim<__nv_bfloat16>(head_dim, call);
  return with_dim<__half>(head_dim, call);
}

}  // namespace

cudaError_t flash_kept_bits(const FlashArgs& args, const FlashDropout& dropout, std::uint32_t* kept,
                            cudaStream_t stream) {
  const std::int64_t words =
      static_cast<std::int64_t>(args.batch) * args.heads * args.queries * args.kept_words;
  const std::int64_t blocks = (words + 255) / 256;
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  FlashArgs a = args;
  FlashDropout d = dropout;
  void* parameters[] = {&a, &d, &kept};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kept_bits_kernel),
                          dim3(static_cast<unsigned>(blocks)), dim3(256), parameters, 0, stream);
}

cudaError_t flash_forward(FlashType type, const FlashArgs& args, cudaStream_t stream) {
  return with_kernel(type, args.head_dim,
                     [&]<typename T, int kDim>() { return forward<T, kDim>(args, stream); });
}

cudaError_t flash_backward(FlashType type, const FlashArgs& args, cudaStream_t stream) {
  return with_kernel(type, args.head_dim,
                     [&]<typename T, int kDim>() { return backward<T, kDim>(args, stream); });
}

}  // namespace shoal::kernels
