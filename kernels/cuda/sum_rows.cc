#include "shoal/kernels/cuda/sum_rows.h"

#include "shoal/kernels/cuda/sum_rows.cuh"

namespace shoal::kernels::cuda {

void sum_rows(CudaResources& resources, const void* x, DType type, std::int64_t rows,
              std::int64_t columns, float* out, bool accumulate, Stream stream,
              cudaStream_t native) {
  if (columns == 0) return;
  const std::int64_t chunks = sum_rows_chunks(rows, columns);
  Buffer partial;
  if (chunks > 1)
    partial = resources.scratch(static_cast<std::size_t>(chunks * columns) * sizeof(float), stream);
  check_cuda(launch_sum_rows(x, type, rows, columns, static_cast<float*>(partial.data()), out,
                             accumulate, native),
             "summing rows");
}

}  // namespace shoal::kernels::cuda
