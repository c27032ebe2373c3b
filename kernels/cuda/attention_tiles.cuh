// What attention's own kernels are made of.
//
// A block is a tile of rows (queries; in the gradient of keys and values, keys), 16 a warp, that
// stays in shared memory while tiles of columns (the other) stream past, the next one being copied
// while one is worked on. Scores of a warp are [16, columns] in registers, in the layout of
// instructions.cuh.
#pragma once

#include "shoal/kernels/cuda/attention_flash.cuh"
#include "shoal/kernels/cuda/instructions.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"

namespace shoal::kernels {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kInfinity = __builtin_inff();

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

// Two elements in one register, the first in the low half.
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

template <typename T, int kDim>
using ForwardTiles = Tiles<T, kDim, columns_for<T>(kDim, false)>;
template <typename T, int kDim>
using KeyTiles = Tiles<T, kDim, columns_for<T>(kDim, true)>;
// Gradients of keys and values need two sums at once: at most this many columns of each.
template <int kDim>
constexpr int kKeyPart = kDim > 128 ? 128 : kDim;

// Launches with dynamic shared memory above the default limit.
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

}  // namespace shoal::kernels
