// Building blocks of our own attention kernels.
//
// A block keeps a tile of rows (16 or 32 per warp) in shared memory and loops over tiles of
// columns; the next tile is copied while the current one is used. Rows are queries and columns are
// keys; for the gradients of keys and values it is the reverse. A warp's scores are one or two
// matrices [16, columns] in registers, in the layout of instructions.cuh. With two matrices, each
// load of columns is used twice. A bit per score tells whether it counts; bits are checked only in
// tiles where some scores do not.
#pragma once

#include <type_traits>

#include "shoal/kernels/cuda/attention_flash.cuh"
#include "shoal/kernels/cuda/instructions.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"

namespace shoal::kernels {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kInfinity = __builtin_inff();

// Sizes of a kernel's tiles; kDim is head_dim rounded up. A row in shared memory is padded by 16
// bytes, so that eight rows of a matrix are in different banks.
template <typename T, int kDimension, int kColumnsOfTile, int kMatricesOfWarp = 1>
struct Tiles {
  static constexpr bool kTensorCores = sizeof(T) == 2;
  static constexpr int kDim = kDimension, kColumns = kColumnsOfTile;
  static constexpr int kMatrices = kMatricesOfWarp, kWarpRows = 16 * kMatrices;
  static constexpr int kWarps = !kTensorCores && kDim > 128 ? 2 : 4;
  static constexpr int kThreads = 32 * kWarps, kRows = kWarpRows * kWarps;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  static constexpr int kStride = kDim + kVector;
  // f32: memory where a warp rearranges its scores for the second product.
  static constexpr int kPatchStride = kColumns + 4;
  static constexpr int kPatch = kTensorCores ? 0 : 16 * kPatchStride;
  static constexpr int kWords = (kColumns + 31) / 32;  // of one row's bits
  static_assert(kTensorCores || kMatrices == 1);

  static constexpr int bytes(int row_tiles) {
    return static_cast<int>(sizeof(T)) *
           (row_tiles * kRows * kStride + 4 * kColumns * kStride + kWarps * kPatch);
  }
  // A warp's scores, and its sums of kOut columns.
  using Scores = float[kMatrices][kColumns / 8][4];
  template <int kOut>
  using Sums = float[kMatrices][kOut / 8][4];
};
// The part of the problem that a block works on.
struct Place {
  int tile, part, head, batch;
  std::int64_t head_row;  // row offset into log_sum_exp, delta and kept: (batch·heads +
                          // head)·queries
};
__device__ inline Place place(const FlashArgs& a, int tiles, int parts) {
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

// Number of keys in the batch row.
__device__ inline int keys_of_row(const FlashArgs& a, const Place& p) {
  return a.key_lengths ? max(0, min(a.key_lengths[p.batch], a.keys)) : a.keys;
}

// Number of the first `keys` keys that the causal mask lets the query see.
__device__ inline int visible_keys(const FlashArgs& a, int keys, int query) {
  if (!a.causal) return keys;
  const int end = query + a.keys - a.queries + 1;
  return end < 0 ? 0 : end < keys ? end : keys;
}

// The end of the window that begins at `own`, at most `end`. It may lie beyond the largest int.
__device__ inline int end_of_window(const FlashArgs& a, int own, int end) {
  return own < end - a.window ? own + a.window : end;
}

// Range of keys that a query sees, before the key mask. kRanges: within its sequence and window.
template <bool kRanges>
__device__ FlashRange keys_of(const FlashArgs& a, const Place& p, int query) {
  FlashRange range{0, visible_keys(a, keys_of_row(a, p), query)};
  if constexpr (kRanges) {
    if (a.sequences) {
      const FlashRange sequence =
          a.sequences[static_cast<std::int64_t>(p.batch) * a.queries + query];
      range = {sequence.begin, min(range.end, sequence.end)};
    }
    if (a.window) {
      const int own = query + a.keys - a.queries;  // the key at the query's position
      range.begin = max(range.begin, own + 1 - a.window);
      if (!a.causal) range.end = end_of_window(a, own, range.end);
    }
  }
  return range;
}
// Range of queries that see a key, if the mask shows it.
template <bool kRanges>
__device__ FlashRange queries_of(const FlashArgs& a, const Place& p, int key) {
  const int own = key - (a.keys - a.queries);  // the query at the key's position
  FlashRange range{0, a.queries};
  if constexpr (kRanges) {
    if (a.sequences) range = a.sequences[static_cast<std::int64_t>(p.batch) * a.queries + key];
    if (a.window) range.end = end_of_window(a, own, range.end);
    if (a.window && !a.causal) range.begin = max(range.begin, own + 1 - a.window);
  }
  if (a.causal) range.begin = max(range.begin, own);
  return range;
}
// Calls start.operator()<kRanges, kCapped>(). Kernels with kRanges compute the range of each row,
// those with kCapped apply the soft cap. The cap needs registers, so the other kernels do not know
// it; kernels with the cap also compute ranges, needed or not.
template <class Start>
cudaError_t with_form(const FlashArgs& a, const Start& start) {
  if (a.soft_cap > 0) return start.template operator()<true, true>();
  if (a.sequences != nullptr || a.window != 0) return start.template operator()<true, false>();
  return start.template operator()<false, false>();
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

// Packs two elements into one register, the first in the low half.
template <typename T>
__device__ std::uint32_t pack(float low, float high);
template <>
__device__ inline std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
template <>
__device__ inline std::uint32_t pack<__half>(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

// Starts copying rows [first, first + kCount) of a head to `tile`, with zeros beyond the last row
// and column. Does not end a group of copies.
template <typename S, int kCount, typename T>
__device__ void load_rows(T* tile, const T* head, std::int64_t row_stride, int first, int rows,
                          const FlashArgs& a) {
  if (a.vectors) {
    // All vectors of a thread are in one column.
    constexpr int kVectors = S::kDim / S::kVector, kTogether = S::kThreads / kVectors;
    static_assert(S::kThreads % kVectors == 0 && kCount % kTogether == 0);
    const int row = static_cast<int>(threadIdx.x) / kVectors,
              column = static_cast<int>(threadIdx.x) % kVectors * S::kVector;
    const int left = column < a.head_dim ? rows - first : 0;
    const T* from = head + (first + row) * row_stride + column;
    T* to = tile + row * S::kStride + column;
#pragma unroll
    for (int r = 0; r < kCount; r += kTogether) {
      const bool inside = r + row < left;
      copy_async(to + r * S::kStride, inside ? from + r * row_stride : head, inside);
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

// c = a [rows of the warp, kDim] · (b [columns, kDim])ᵀ, both in shared memory.
template <typename S, typename T>
__device__ void dot_rows(typename S::Scores& c, const T* a, const T* b) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < S::kMatrices; ++m)
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; ++n) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
  if constexpr (S::kTensorCores) {
    a += lane % 16 * S::kStride + lane / 16 * 8;
    b += (lane / 16 * 8 + lane % 8) * S::kStride + lane / 8 % 2 * 8;
#pragma unroll 4
    for (int k = 0; k < S::kDim / 16; ++k) {
      std::uint32_t left[S::kMatrices][4];
#pragma unroll
      for (int m = 0; m < S::kMatrices; ++m)
        load_matrices(left[m], a + m * 16 * S::kStride + k * 16);
#pragma unroll
      for (int n = 0; n < S::kColumns / 16; ++n) {
        std::uint32_t right[4];
        load_matrices(right, b + n * 16 * S::kStride + k * 16);
#pragma unroll
        for (int m = 0; m < S::kMatrices; ++m) {
          multiply<T>(c[m][2 * n], left[m], right[0], right[1]);
          multiply<T>(c[m][2 * n + 1], left[m], right[2], right[3]);
        }
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
        c[0][n][0] += upper * left;
        c[0][n][1] += upper * right;
        c[0][n][2] += lower * left;
        c[0][n][3] += lower * right;
      }
    }
  }
}

// Applies the scale and the soft cap to scores.
template <typename S>
__device__ void cap_scores(typename S::Scores& s, float scale, float cap) {
  const float factor = scale / cap;
#pragma unroll
  for (int m = 0; m < S::kMatrices; ++m)
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m][n][e] = cap * tanhf(s[m][n][e] * factor);
}

// sum += p · b [columns, kOut]; p is in registers, b in shared memory (starting at the first wanted
// column). In f32, p goes through the warp's own `patch`.
template <typename S, int kOut, typename T>
__device__ void add_product(typename S::template Sums<kOut>& sum, const typename S::Scores& p,
                            const T* b, T* patch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (S::kTensorCores) {
    b += lane % 16 * S::kStride + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < S::kColumns / 16; ++k) {
      std::uint32_t left[S::kMatrices][4];
#pragma unroll
      for (int m = 0; m < S::kMatrices; ++m) {
        left[m][0] = pack<T>(p[m][2 * k][0], p[m][2 * k][1]);
        left[m][1] = pack<T>(p[m][2 * k][2], p[m][2 * k][3]);
        left[m][2] = pack<T>(p[m][2 * k + 1][0], p[m][2 * k + 1][1]);
        left[m][3] = pack<T>(p[m][2 * k + 1][2], p[m][2 * k + 1][3]);
      }
#pragma unroll
      for (int n = 0; n < kOut / 16; ++n) {
        std::uint32_t right[4];
        load_matrices_transposed(right, b + k * 16 * S::kStride + n * 16);
#pragma unroll
        for (int m = 0; m < S::kMatrices; ++m) {
          multiply<T>(sum[m][2 * n], left[m], right[0], right[1]);
          multiply<T>(sum[m][2 * n + 1], left[m], right[2], right[3]);
        }
      }
    }
  } else {
    const int row = lane / 4, column = lane % 4 * 2;
    __syncwarp();  // other lanes may still read the patch
#pragma unroll
    for (int n = 0; n < S::kColumns / 8; ++n) {
      float* to = patch + row * S::kPatchStride + n * 8 + column;
      to[0] = p[0][n][0];
      to[1] = p[0][n][1];
      to[8 * S::kPatchStride] = p[0][n][2];
      to[8 * S::kPatchStride + 1] = p[0][n][3];
    }
    __syncwarp();
#pragma unroll 2
    for (int k = 0; k < S::kColumns; ++k) {
      const float upper = patch[row * S::kPatchStride + k],
                  lower = patch[(row + 8) * S::kPatchStride + k];
      const T* from = b + k * S::kStride + column;
#pragma unroll
      for (int n = 0; n < kOut / 8; ++n) {
        sum[0][n][0] += upper * from[n * 8];
        sum[0][n][1] += upper * from[n * 8 + 1];
        sum[0][n][2] += lower * from[n * 8];
        sum[0][n][3] += lower * from[n * 8 + 1];
      }
    }
  }
}

// Writes a warp's sums, times one factor per row of the lane, to rows of a head starting at `row`
// and columns starting at `first`.
template <typename S, int kOut, typename T>
__device__ void store_rows(const typename S::template Sums<kOut>& sum,
                           const float (&factor)[S::kMatrices][2], T* head, std::int64_t row_stride,
                           int row, int rows, int first, const FlashArgs& a) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < S::kMatrices; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + 16 * m + 8 * half + lane / 4;
      if (r >= rows) continue;
      T* to = head + r * row_stride;
#pragma unroll
      for (int n = 0; n < kOut / 8; ++n) {
        const int column = first + n * 8 + lane % 4 * 2;
        const float low = sum[m][n][2 * half] * factor[m][half],
                    high = sum[m][n][2 * half + 1] * factor[m][half];
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

// One bit per column of a tile. of_lane() shifts the bits to the lane's columns once, so that each
// score's bit is at a constant position.
template <typename S>
struct Bits {
  std::uint32_t word[S::kWords];
  __device__ bool operator()(int n, int e) const {
    return (word[n / 4] >> (n % 4 * 8 + e) & 1u) != 0;
  }
  __device__ Bits of_lane() const {
    Bits shifted;
#pragma unroll
    for (int i = 0; i < S::kWords; ++i)
      shifted.word[i] = word[i] >> static_cast<int>(threadIdx.x) % 4 * 2;
    return shifted;
  }
  __device__ bool all() const {
    bool yes = true;
#pragma unroll
    for (int i = 0; i < S::kWords; ++i)
      yes = yes && word[i] == (S::kColumns < 32 ? (1u << S::kColumns % 32) - 1 : 0xffffffffu);
    return yes;
  }
};
// Columns [low, high) that are also in `among`.
template <typename S>
__device__ Bits<S> columns_between(int low, int high, const Bits<S>& among) {
  const auto below = [](int limit) {
    return limit <= 0 ? 0u : limit >= 32 ? 0xffffffffu : (1u << limit) - 1;
  };
  Bits<S> bits;
#pragma unroll
  for (int i = 0; i < S::kWords; ++i)
    bits.word[i] = below(high - 32 * i) & ~below(low - 32 * i) & among.word[i];
  return bits;
}
// Keys [key, key + columns) that exist and that the mask shows. All lanes of the warp must call it.
template <typename S>
__device__ Bits<S> shown_keys(const FlashArgs& a, const Place& p, int key) {
  Bits<S> bits;
  const int keys = keys_of_row(a, p);
#pragma unroll
  for (int i = 0; i < S::kWords; ++i) {
    const int in_tile = 32 * i + static_cast<int>(threadIdx.x) % 32, k = key + in_tile;
    bool shown = in_tile < S::kColumns && k < keys;
    if (a.key_mask)
      shown = shown && a.key_mask[static_cast<std::int64_t>(p.batch) * a.keys + k] != 0;
    bits.word[i] = __ballot_sync(0xffffffffu, shown);
  }
  return bits;
}
// Dropout's bits for keys [key, key + columns) of a query; `key` is a multiple of the tile's
// columns.
template <typename S>
__device__ Bits<S> kept_keys(const FlashArgs& a, const Place& p, int query, int key) {
  Bits<S> bits;
#pragma unroll
  for (int i = 0; i < S::kWords; ++i) {
    const int word = key / 32 + i;
    bits.word[i] = query < a.queries && word < a.kept_words
                       ? a.kept[(p.head_row + query) * a.kept_words + word] >> key % 32
                       : 0;
  }
  return bits;
}
// For a warp's queries starting at `query` and a tile of keys: sets the scores that each row of the
// lane sees and, with dropout, those that it keeps. Returns true if the rows see all scores; `seen`
// is then not set.
template <typename S, bool kRanges>
__device__ bool scores_that_count(const FlashArgs& a, const Place& p, int query, int key,
                                  Bits<S> (&seen)[S::kMatrices][2],
                                  Bits<S> (&kept)[S::kMatrices][2]) {
  const Bits<S> shown = shown_keys<S>(a, p, key);
  bool whole = shown.all() && key + S::kColumns <= visible_keys(a, a.keys, query);
  if constexpr (kRanges) {
    // All queries see the whole tile if the first query sees the tile's last key and the last query
    // sees the tile's first key.
    const int lowest = min(query + S::kWarpRows, a.queries) - 1;
    whole = whole && query < a.queries && key >= keys_of<true>(a, p, lowest).begin &&
            key + S::kColumns <= keys_of<true>(a, p, query).end;
  }
#pragma unroll
  for (int m = 0; m < S::kMatrices; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int q = query + 16 * m + 8 * half + static_cast<int>(threadIdx.x) % 32 / 4;
      if (!whole) {
        FlashRange keys{0, 0};
        if constexpr (kRanges) {
          if (q < a.queries) keys = keys_of<true>(a, p, q);
        } else {
          keys.end = q < a.queries ? visible_keys(a, a.keys, q) : 0;
        }
        seen[m][half] = columns_between(keys.begin - key, keys.end - key, shown).of_lane();
      }
      if (a.kept) kept[m][half] = kept_keys<S>(a, p, q, key).of_lane();
    }
  return whole;
}

// Shared memory of a block: tiles of rows, two stages of two tiles of columns, patches.
template <typename S, typename T, int kRowTiles>
struct Room {
  T* memory;
  __device__ Room() : memory(dynamic_shared<T>()) {}
  __device__ T* rows(int which) const { return memory + which * S::kRows * S::kStride; }
  __device__ T* columns(int step, int which) const {
    return rows(kRowTiles) + (step % 2 * 2 + which) * S::kColumns * S::kStride;
  }
  __device__ T* patch() const {  // of this warp
    return columns(2, 0) + 4 * S::kColumns * S::kStride +
           static_cast<int>(threadIdx.x) / 32 * S::kPatch;
  }
};

// Two matrices per warp if registers suffice: heads of at most 64 in 16 bits.
template <typename T, int kDim>
using ForwardTiles =
    std::conditional_t<sizeof(T) == 2, Tiles<T, kDim, (kDim > 128 ? 32 : 64), (kDim > 64 ? 1 : 2)>,
                       Tiles<T, kDim, (kDim > 128 ? 16 : 32)>>;
// The gradient of queries needs registers for two sets of scores.
template <typename T, int kDim>
using QueryTiles =
    std::conditional_t<sizeof(T) == 2, Tiles<T, kDim, (kDim == 128 ? 64 : 32), (kDim > 64 ? 1 : 2)>,
                       Tiles<T, kDim, (kDim > 128 ? 16 : 32)>>;
// The gradient of keys and values also needs registers for two sums.
template <typename T, int kDim>
using KeyTiles = std::conditional_t<sizeof(T) == 2, Tiles<T, kDim, 32, (kDim > 64 ? 1 : 2)>,
                                    Tiles<T, kDim, (kDim > 128 ? 16 : 32)>>;
// Number of columns of these two sums that a block computes, limited by registers.
template <int kDim>
constexpr int kKeyPart = kDim > 128 ? 128 : kDim;

// Launches with more dynamic shared memory than the default limit.
template <void (*kKernel)(FlashArgs)>
cudaError_t launch(std::int64_t blocks, int threads, int bytes, const FlashArgs& args,
                   cudaStream_t stream) {
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  if (bytes > 48 * 1024) {
    const cudaError_t status = cudaFuncSetAttribute(
        reinterpret_cast<const void*>(kKernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
  }
  return launch_kernel(kKernel, static_cast<unsigned>(blocks), threads,
                       static_cast<std::size_t>(bytes), stream, args);
}

inline std::int64_t blocks_of(const FlashArgs& a, int length, int rows) {
  return static_cast<std::int64_t>(a.batch) * a.heads * ((length + rows - 1) / rows);
}

// Calls call.operator()<T, kDim>() for the type and the rounded head_dim.
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

}  // namespace shoal::kernels
