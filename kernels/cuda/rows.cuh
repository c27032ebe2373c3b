// Launchers of rows.cu: operations for heads that use only a few rows of their input.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/fault.cuh"
#include "shoal/kernels/cuda/launch.cuh"
#include "shoal/kernels/loss_scale.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// Selects `count` rows of `bytes` bytes each: RowSelection of embedding.h. A number >= `limit` is
// reported and selects no row.
struct SelectedRows {
  std::int64_t count, bytes;
  const std::int32_t* numbers;  // null: all use `offset`
  std::int64_t stride, offset, limit;
  FaultRecord* fault;
};
// out [count] = the selected rows of x; if an entry selects no row, all its bytes become `missing`.
cudaError_t launch_select_rows(Launch at, const SelectedRows& rows, const void* x, void* out,
                               std::uint8_t missing);
// The selected rows of dx = dout [count].
cudaError_t launch_place_rows(Launch at, const SelectedRows& rows, const void* dout, void* dx);

// EmbeddingKernels::count_positions, [batch, length].
cudaError_t launch_count_positions(Launch at, std::int64_t batch, std::int64_t length,
                                   const std::int32_t* ids, std::int32_t padding,
                                   std::int32_t* out);

// LossKernels::squared_error in a single block, since it has few numbers. Its order of addition is
// fixed but differs from that of other devices.
cudaError_t launch_squared_error(DType dtype, std::int64_t count, const void* x,
                                 const float* targets, float loss_scale, const StepState* state,
                                 float* loss_sum, void* dx, cudaStream_t stream);

}  // namespace shoal::kernels
