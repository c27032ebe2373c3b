// Support for cuDNN's attention with key lengths or packed sequences. Computes the lengths and
// offsets that cuDNN needs, and overwrites values that cuDNN leaves undefined with those that
// attention.h defines. Launchers of attention_padding.cu.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/launch.cuh"

namespace shoal::kernels {

// Sets query_lengths [batch] to `queries` and key_lengths [batch] to `lengths`, clamped to
// [0, keys].
cudaError_t launch_count_rows(Launch at, const std::int32_t* lengths, int batch, int queries,
                              int keys, std::int32_t* query_lengths, std::int32_t* key_lengths);

// 16-bit elements, 16-byte aligned; element (b, t, c) is at data + b·batch + t·row + c.
struct PaddedTensor {
  void* data = nullptr;
  std::int64_t batch = 0, row = 0;
  bool of_keys = false;  // rows are keys; else queries
};
struct PaddedTensors {
  const std::int32_t* lengths = nullptr;  // [batch], from launch_count_rows()
  int batch = 0, heads = 0, queries = 0, keys = 0;
  int channels = 0;  // heads·head_dim, a multiple of 8
  PaddedTensor tensors[3];
  int count = 0;
  float* log_sum_exp = nullptr;  // [batch, heads, queries] or null
};
// Zeroes rows of keys beyond their length. If a batch row has no keys, also zeroes its rows of
// queries and sets its log_sum_exp to -inf.
cudaError_t launch_clear_padding(Launch at, const PaddedTensors& padded);

// Computes the token counts and offsets of packed sequences [first, first + count)
// (AttentionShape::sequences, row after row), for tensors with `row` elements per token.
constexpr int kPackedTensors = 9;
struct PackedOffsets {
  const std::int32_t* sequences = nullptr;  // [rows, of_row]
  int rows = 0, of_row = 0, length = 0;     // `length` tokens a row
  int first = 0, count = 0;
  std::int64_t row[kPackedTensors] = {};       // elements per token
  std::int32_t* offsets[kPackedTensors] = {};  // [count + 1] each; null: not needed
  std::int32_t *query_lengths = nullptr, *key_lengths = nullptr;  // [count]
};
cudaError_t launch_packed_offsets(Launch at, const PackedOffsets& packed);

// to [batch, heads, length] = from [batch, length, heads]; launch_sums_by_token does the inverse.
cudaError_t launch_sums_by_head(Launch at, const float* from, int batch, int heads, int length,
                                float* to);
cudaError_t launch_sums_by_token(Launch at, const float* from, int batch, int heads, int length,
                                 float* to);

}  // namespace shoal::kernels
