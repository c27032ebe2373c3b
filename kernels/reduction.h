// Reductions across ranks' buffers: what collectives may use of kernels.
#pragma once

#include <span>

#include "shoal/runtime/device/device.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

enum class Reduce : std::uint8_t { sum, prod, min, max };  // min and max propagate NaN

class ReductionKernels {
 public:
  virtual ~ReductionKernels() = default;

  // destination[i] = reduce over sources[s][i], s in order (a left fold from sources[0]); 16-bit
  // floats accumulate in f32 and are rounded once. destination may be one of the sources.
  // Single-threaded: the ranks are the parallelism. No alignment is assumed.
  virtual void reduce(Reduce operation, DType dtype, std::span<const void* const> sources,
                      void* destination, std::int64_t count, Stream stream) = 0;
  // x *= factor (avg, pre-multiplied sum); floating dtypes only. No alignment is assumed.
  virtual void scale(DType dtype, void* x, double factor, std::int64_t count, Stream stream) = 0;
};

}  // namespace shoal::kernels
