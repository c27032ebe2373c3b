// Launchers of embedding.cu. Pointers are to device memory, aligned to their elements. Ids outside
// [0, vocabulary) are reported and replaced by 0; vocabulary >= 1.
#pragma once

#include <cstddef>

#include "shoal/kernels/cuda/embedding_sort.cuh"
#include "shoal/kernels/cuda/fault.cuh"
#include "shoal/kernels/cuda/launch.cuh"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

cudaError_t launch_embedding(Launch at, DType dtype, EmbeddingShape shape, const std::int32_t* ids,
                             const void* table, void* out, bool accumulate, FaultRecord* fault);

// dtable += rows of dout in the order of their positions. Ids are sorted stably with their
// positions, then each run of equal ids is summed. `scratch`: EmbeddingSort::bytes, 256-byte
// aligned. 1 <= count < 2^31, columns >= 1.
cudaError_t launch_embedding_backward(Launch at, DType dtype, EmbeddingShape shape,
                                      const EmbeddingSort& sort, const std::int32_t* ids,
                                      const void* dout, float* dtable, std::byte* scratch,
                                      FaultRecord* fault);

// dtable[i] += dout[b][i] for b in order; each of the `batch` samples has `plane` elements.
cudaError_t launch_position_backward(Launch at, DType dtype, std::int64_t batch, std::int64_t plane,
                                     const void* dout, float* dtable);

// Rotary positions of embedding.h for `rows` = B·T rows, `width` = H·D, `dim` = D, `turning` = R.
// `positions` [rows] index a table of `limit` rows; null: `table` starts at the first position.
struct RotaryLaunch {
  std::int64_t rows, length, width, dim, turning;
  const void* x;
  const float* table;
  void* out;
  float sign;  // -1: backward
  const std::int32_t* positions;
  std::int64_t limit;
  FaultRecord* fault;
};
cudaError_t launch_rotary(Launch at, DType dtype, const RotaryLaunch& args);

}  // namespace shoal::kernels
