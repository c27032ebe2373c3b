// What cuDNN's attention needs besides, where the keys of a batch row have a length or sequences
// are packed: it is told how many queries and keys there are and where, and what it leaves
// undefined becomes what attention.h says. Launchers of attention_padding.cu.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/launch.cuh"

namespace shoal::kernels {

// Every batch row has all queries, and of the keys its length, taken into [0, keys]. lengths,
// query_lengths, key_lengths [batch].
cudaError_t launch_count_rows(Launch at, const std::int32_t* lengths, int batch, int queries,
                              int keys, std::int32_t* query_lengths, std::int32_t* key_lengths);

// Of 16-bit elements, 16-byte aligned; element (b, t, c) at data + b·batch + t·row + c.
struct PaddedTensor {
  void* data = nullptr;
  std::int64_t batch = 0, row = 0;
  bool of_keys = false;  // else of queries
};
struct PaddedTensors {
  const std::int32_t* lengths = nullptr;  // [batch], as launch_count_rows() wrote them
  int batch = 0, heads = 0, queries = 0, keys = 0;
  int channels = 0;  // heads·head_dim, a multiple of 8
  PaddedTensor tensors[3];
  int count = 0;
  float* log_sum_exp = nullptr;  // [batch, heads, queries] or null
};
// Rows of keys from the length on become 0, and where a batch row has no keys its rows of queries 0
// and its log_sum_exp -inf.
cudaError_t launch_clear_padding(Launch at, const PaddedTensors& padded);

// Of packed sequences [first, first + count) of all (AttentionShape::sequences, row after row): how
// many tokens each has, and where it begins in tensors of so many elements a token.
constexpr int kPackedTensors = 9;
struct PackedOffsets {
  const std::int32_t* sequences = nullptr;  // [rows, of_row]
  int rows = 0, of_row = 0, length = 0;     // `length` tokens a row
  int first = 0, count = 0;
  std::int64_t row[kPackedTensors] = {};       // elements
  std::int32_t* offsets[kPackedTensors] = {};  // [count + 1] each; null: not wanted
  std::int32_t *query_lengths = nullptr, *key_lengths = nullptr;  // [count]
};
cudaError_t launch_packed_offsets(Launch at, const PackedOffsets& packed);

// to [batch, heads, length] = from [batch, length, heads], or the other way round.
cudaError_t launch_sums_by_head(Launch at, const float* from, int batch, int heads, int length,
                                float* to);
cudaError_t launch_sums_by_token(Launch at, const float* from, int batch, int heads, int length,
                                 float* to);

}  // namespace shoal::kernels
