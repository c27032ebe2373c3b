// What attention by products needs between its products: softmax over rows of scores, its gradient,
// and the rounding of sums. Launchers of attention_softmax.cu.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/attention_flash.cuh"
#include "shoal/kernels/cuda/launch.cuh"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// The scores of a piece of a call: batch rows [first_batch, first_batch + batch), likewise heads
// and queries, and of each query the keys [0, keys), beyond which none of these queries sees.
struct ScoreRows {
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0;
  std::int64_t first_batch = 0, first_head = 0, first_query = 0;
  // Of every [batch, heads, queries, leading] of the piece: a multiple of four elements, from an
  // address aligned to 16 bytes.
  std::int64_t leading = 0;
  // Of the call: log_sum_exp is [.., whole_heads, whole_queries], key_mask [.., whole_keys];
  // key_lengths [..]: of a batch row only so many keys are seen.
  std::int64_t whole_heads = 0, whole_queries = 0, whole_keys = 0;
  float scale = 1;
  bool causal = false;
  const std::uint8_t* key_mask = nullptr;
  const std::int32_t* key_lengths = nullptr;
  const FlashRange* sequences = nullptr;  // [.., whole_queries], as FlashArgs' are; or null
  float* log_sum_exp = nullptr;           // forward: written unless null; backward: read
  bool drops = false;
  FlashDropout dropout;
  float keep_scale = 1;  // 1 / (1 - dropout)
};

// probabilities = dropout(softmax(scale·scores + mask)), of `type`, f32 where they lie in the
// scores' memory; 0 where a key is not seen.
cudaError_t launch_softmax(Launch at, DType type, const ScoreRows& rows, const float* scores,
                           void* probabilities);
// From the scores and the gradient of the probabilities after dropout: these probabilities again,
// and the gradient of q·kᵀ, both of `type`; f32: in the memory of `scores` and `gradient`.
cudaError_t launch_softmax_gradient(Launch at, DType type, const ScoreRows& rows,
                                    const float* scores, const float* gradient, void* probabilities,
                                    void* dscores);

// to [rows, columns] of `type`, `row` elements from row to row = from [rows, columns] f32.
cudaError_t launch_round_rows(Launch at, DType type, const float* from, std::int64_t rows,
                              std::int64_t columns, std::int64_t row, void* to);

}  // namespace shoal::kernels
