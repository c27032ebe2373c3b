// Launchers of sum_rows.cu.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels::cuda {

// Number of chunks for [rows, columns]. Chunks of rows are summed separately and then in order. The
// number does not depend on the device, so the sum does not either.
std::int64_t sum_rows_chunks(std::int64_t rows, std::int64_t columns);

// out[j] (+)= sum over i of x[i·columns + j]; partial [chunks, columns], unused with one chunk.
cudaError_t launch_sum_rows(const void* x, DType type, std::int64_t rows, std::int64_t columns,
                            float* partial, float* out, bool accumulate, cudaStream_t stream);

}  // namespace shoal::kernels::cuda
