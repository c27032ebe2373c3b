// Steps between the products of attention by products: softmax over rows of scores, its gradient,
// and rounding of sums. Launchers of attention_softmax.cu.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/attention_flash.cuh"
#include "shoal/kernels/cuda/launch.cuh"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// The scores of a piece of a call: batch rows [first_batch, first_batch + batch), heads and queries
// likewise, and keys [0, keys). None of these queries sees a later key.
struct ScoreRows {
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0;
  std::int64_t first_batch = 0, first_head = 0, first_query = 0;
  // Row length of the piece's matrices [batch, heads, queries, leading]: a multiple of four
  // elements. Matrices are 16-byte aligned.
  std::int64_t leading = 0;
  // Sizes of the whole call: log_sum_exp is [.., whole_heads, whole_queries], key_mask
  // [.., whole_keys]. key_lengths [..]: number of visible keys per batch row.
  std::int64_t whole_heads = 0, whole_queries = 0, whole_keys = 0;
  float scale = 1, soft_cap = 0;  // AttentionShape::soft_cap
  bool causal = false;
  std::int64_t window = 0;  // AttentionShape::window
  const std::uint8_t* key_mask = nullptr;
  const std::int32_t* key_lengths = nullptr;
  const FlashRange* sequences = nullptr;  // [.., whole_queries], as in FlashArgs; or null
  // AttentionShape::relative_bias, [whole_heads, relative_positions()]; or null.
  const float* relative_bias = nullptr;
  float* log_sum_exp = nullptr;  // forward: written unless null; backward: read
  bool drops = false;
  FlashDropout dropout;
  float keep_scale = 1;  // 1 / (1 - dropout)
};

// probabilities = dropout(softmax(scale·scores + mask)), in `type`; 0 for keys that are not seen.
// f32 probabilities overwrite the scores.
cudaError_t launch_softmax(Launch at, DType type, const ScoreRows& rows, const float* scores,
                           void* probabilities);
// Computes the probabilities after dropout again, and the gradient of q·kᵀ, both in `type`.
// `gradient` is the gradient of these probabilities. In f32 the results overwrite `scores` and
// `gradient`.
cudaError_t launch_softmax_gradient(Launch at, DType type, const ScoreRows& rows,
                                    const float* scores, const float* gradient, void* probabilities,
                                    void* dscores);

// Adds the piece's part of AttentionShape::relative_bias_gradient to `sums`, f32. `dscores`: from
// launch_softmax_gradient().
cudaError_t launch_sum_relative_bias(Launch at, DType type, const ScoreRows& rows,
                                     const void* dscores, float* sums);

// Rounds f32 [rows, columns] to `type`. Rows of `to` are `row` elements
// apart.
cudaError_t launch_round_rows(Launch at, DType type, const float* from, std::int64_t rows,
                              std::int64_t columns, std::int64_t row, void* to);

}  // namespace shoal::kernels
