// Launchers of norm.cu and norm_backward.cu. `type` is the dtype of all activations, `weight_type`
// that of gamma and beta; rows and columns are at least 1. Pointers may have any alignment.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "shoal/kernels/cuda/philox.cuh"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

struct LayerNormLaunch {
  DType type, weight_type;
  std::int64_t rows, columns;
  // residual null: x is normalised directly; beta null: RMSNorm
  const void *x, *residual, *gamma, *beta;
  void *sum, *y;
  float *mean, *rstd;  // null: not kept
  float epsilon, gamma_offset;
  RowDropout dropout;
};
cudaError_t launch_layer_norm(const LayerNormLaunch& args, cudaStream_t stream);

struct LayerNormBackwardLaunch {
  DType type, weight_type;
  std::int64_t rows, columns;
  const void *dy, *x, *gamma, *residual;  // residual null: none
  const float *mean, *rstd;               // mean null: RMSNorm
  float gamma_offset;
  void *dx, *branch;  // branch null: dropout(dx) is not wanted
  RowDropout dropout;
  std::int64_t parts;  // parts of the rows; 0: only dx
  float* partial;      // [parts, 2, columns]: receives each part's sums for dgamma and dbeta
};
cudaError_t launch_layer_norm_backward(const LayerNormBackwardLaunch& args, cudaStream_t stream);
// Number of parts the rows are split into to compute the weights' sums together with dx; depends
// only on sizes and alignment. 0: not possible, because rows are too long or elements cannot be
// moved as vectors.
std::int64_t layer_norm_backward_parts(const LayerNormBackwardLaunch& args);

// Number of parts of the rows; it depends only on the sizes, so sums are the same on every device.
std::int64_t layer_norm_weight_parts(std::int64_t rows, std::int64_t columns);
struct LayerNormWeightLaunch {
  DType type;
  std::int64_t rows, columns, parts;  // rows may be 0 (parts: 0)
  const void *dy, *x;
  const float *mean, *rstd;  // mean and dbeta null: RMSNorm
  float* partial;            // [parts, 2, columns] scratch
  float *dgamma, *dbeta;
  bool accumulate;
};
cudaError_t launch_layer_norm_weight(const LayerNormWeightLaunch& args, cudaStream_t stream);
// Adds up dgamma and dbeta from the sums in `partial`.
cudaError_t launch_layer_norm_weight_total(const LayerNormWeightLaunch& args, cudaStream_t stream);

cudaError_t launch_softmax(DType type, std::int64_t rows, std::int64_t columns, const void* x,
                           void* y, cudaStream_t stream);
cudaError_t launch_softmax_backward(DType type, std::int64_t rows, std::int64_t columns,
                                    const void* y, const void* dy, void* dx, cudaStream_t stream);

}  // namespace shoal::kernels
