// Our own attention kernels (Dao et al., "FlashAttention", 2022, and "FlashAttention-2", 2023).
// They run calls that cuDNN does not support: f32, byte masks, dropout with the coordinates of
// random.h, and any alignment of pointers and sizes. Backward computes the probabilities twice,
// once by queries and once by keys, so that one thread block adds each sum in a fixed order.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "shoal/kernels/random.h"

namespace shoal::kernels {

enum class FlashType { f32, bf16, f16 };

// Element (b, t, h, d) at data + b·batch + t·row + h·head_dim + d.
struct FlashHeads {
  void* data = nullptr;
  std::int64_t batch = 0, row = 0;
};

// Range of a token's sequence within its batch row.
struct alignas(8) FlashRange {
  int begin, end;
};

struct FlashArgs {
  FlashHeads q, k, v, out, dout, dq, dk, dv;
  float* log_sum_exp = nullptr;  // [B, heads, queries]; forward: may be null
  float* delta = nullptr;        // [B, heads, queries, 2], scratch of backward, 8-byte aligned
  int batch = 0, heads = 0, queries = 0, keys = 0, head_dim = 0;
  float scale = 1, soft_cap = 0;  // AttentionShape::soft_cap
  bool causal = false;
  int window = 0;        // AttentionShape::window
  bool vectors = false;  // every pointer is 16-byte aligned; strides and head_dim are whole vectors
  const std::uint8_t* key_mask = nullptr;     // [B, keys] or null
  const std::int32_t* key_lengths = nullptr;  // [B]: number of visible keys per batch row; or null
  // [B, queries]: range of each query's sequence within its batch row (flash_token_ranges); null:
  // no packed sequences. Requires keys = queries.
  const FlashRange* sequences = nullptr;
  // Dropout: bit k%32 of word [b, h, q, k/32] is 1 if the probability is kept; null: no dropout.
  const std::uint32_t* kept = nullptr;
  int kept_words = 0;    // words per query: ceil(keys / 32)
  float keep_scale = 1;  // 1 / (1 - dropout)
};

// Parameters that determine FlashArgs::kept; element (h, q, k) as random.h defines it.
struct FlashDropout {
  RandomSite site;  // its state, if any, is in device memory
  std::uint32_t threshold = 0;
  std::int64_t max_positions = 0, head_offset = 0;
};

constexpr int kFlashMaxHeadDim = 256;

// Bytes of dynamic shared memory per block; some chips have less.
int flash_forward_shared_bytes(FlashType type, int head_dim);
int flash_backward_shared_bytes(FlashType type, int head_dim);

// Writes the range of every token [batch, length] of packed sequences (AttentionShape::sequences,
// [batch, count]). A token outside all sequences, or in one that exceeds the batch row, gets an
// empty range.
cudaError_t flash_token_ranges(const std::int32_t* sequences, int count, int batch, int length,
                               FlashRange* ranges, cudaStream_t stream);
cudaError_t flash_kept_bits(const FlashArgs& args, const FlashDropout& dropout, std::uint32_t* kept,
                            cudaStream_t stream);
cudaError_t flash_forward(FlashType type, const FlashArgs& args, cudaStream_t stream);
cudaError_t flash_backward(FlashType type, const FlashArgs& args, cudaStream_t stream);

}  // namespace shoal::kernels
