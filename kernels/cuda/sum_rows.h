// Row sums of a matrix: the gradient of a bias, as a separate pass.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/resources.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels::cuda {

// out[j] (+)= sum over i of x[i·columns + j], in f32; the order depends only on the sizes. Queued
// on `native`, the native stream of `stream`; scratch from `resources`.
void sum_rows(CudaResources& resources, const void* x, DType type, std::int64_t rows,
              std::int64_t columns, float* out, bool accumulate, Stream stream,
              cudaStream_t native);

}  // namespace shoal::kernels::cuda
