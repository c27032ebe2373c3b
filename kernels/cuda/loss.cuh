// Launchers of loss.cu. Rows and classes are at least 1 unless stated otherwise.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "shoal/kernels/cuda/fault.cuh"
#include "shoal/kernels/loss_scale.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// Cross-entropy of rows of logits, and the logits' gradients.
struct CrossEntropyLaunch {
  DType type, gradient_type;  // gradient_type: type, or f32
  std::int64_t rows, classes;
  const void* logits;  // [rows, leading]; columns >= `classes` are never read
  void* gradient;      // [rows, leading], columns >= `classes` become 0; null: no gradient; may
                       // alias logits
  std::int64_t leading;
  const std::int32_t* targets;  // [rows]; negative: none
  std::int64_t first_row;       // index of row 0 among all rows, for error reports
  FaultRecord* fault;
  float soft_cap;  // LinearCrossEntropyArgs::soft_cap
  float label_smoothing, scale;
  const StepState* state;  // its two factors also multiply `scale` (whole_scale()); null: none
  float* token_loss;       // [rows]; 0 where there is no target
  std::int32_t* correct;   // [rows] 1 if the target is the first largest logit; null: not wanted
};
// `shared_limit`: bytes of dynamic shared memory that a block may have. Rows that exceed it are
// read twice.
cudaError_t launch_cross_entropy(const CrossEntropyLaunch& args, int shared_limit,
                                 cudaStream_t stream);

// loss_sum[0] = sum of token_loss [rows], added in f64; correct_sum[0] = sum of correct [rows]
// (null: not wanted). rows may be 0. The order depends only on the number of rows.
cudaError_t launch_loss_total(const float* token_loss, const std::int32_t* correct,
                              std::int64_t rows, float* loss_sum, std::int32_t* correct_sum,
                              cudaStream_t stream);

// out[column] (+)= sum over rows of x [rows, leading], f32; partial: [column_parts(rows), columns]
// scratch.
std::int64_t column_parts(std::int64_t rows);
cudaError_t launch_column_sums(DType type, const void* x, std::int64_t rows, std::int64_t columns,
                               std::int64_t leading, float* partial, float* out, bool accumulate,
                               cudaStream_t stream);

// LossKernels::shard_statistics; columns may be 0.
cudaError_t launch_shard_statistics(float* logits, std::int64_t rows, std::int64_t columns,
                                    const std::int32_t* targets, std::int64_t first_class,
                                    float soft_cap, float* statistics, cudaStream_t stream);

// LossKernels::shard_cross_entropy; columns may be 0.
struct ShardLossLaunch {
  const float* exponentials;  // [rows, columns]
  const float* statistics;    // [ranks, rows, 4]
  std::int64_t rows, columns, ranks, rank;
  const std::int32_t* targets;
  std::int64_t first_class, classes;
  FaultRecord* fault;
  float soft_cap, label_smoothing, scale;
  const StepState* state;  // as above
  float* token_loss;
  void* gradient;  // null: not wanted
  DType gradient_type;
};
cudaError_t launch_shard_cross_entropy(const ShardLossLaunch& args, cudaStream_t stream);

}  // namespace shoal::kernels
