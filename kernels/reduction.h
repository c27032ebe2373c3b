// Reductions over ranks' buffers. Collectives may use only these kernels.
#pragma once

#include <memory>
#include <span>

#include "shoal/runtime/device/device.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

enum class Reduce : std::uint8_t { sum, prod, min, max };  // min and max propagate NaN

class ReductionKernels {
 public:
  virtual ~ReductionKernels() = default;

  // destination[i] = reduce over sources[s][i], s in order (a left fold from sources[0]). 16-bit
  // floats accumulate in f32 and are rounded once. destination may be one of the sources.
  // Single-threaded: ranks run in parallel. No alignment is assumed.
  virtual void reduce(Reduce operation, DType dtype, std::span<const void* const> sources,
                      void* destination, std::int64_t count, Stream stream) = 0;
  // Stores the same result into every destination in one pass; a rank that maps its peers' buffers
  // uses it for its shard. A destination may be one of the sources; other overlaps are not allowed.
  // `past_caches` uses non-temporal stores, ordered before the caller's next store. They pay off if
  // sources and destinations together exceed the last-level cache and no destination is a source.
  virtual void reduce_into_all(Reduce operation, DType dtype, std::span<const void* const> sources,
                               std::span<void* const> destinations, std::int64_t count,
                               bool past_caches, Stream stream) = 0;
  // The fold of 16-bit floats, returned in f32 before rounding, for sums that are completed and
  // rounded elsewhere. `destination` is aligned to its element and is none of the sources.
  virtual void reduce_widened(Reduce operation, DType dtype, std::span<const void* const> sources,
                              float* destination, std::int64_t count, Stream stream) = 0;
  // x *= factor (average, pre-multiplied sum); floating dtypes only. No alignment is assumed.
  virtual void scale(DType dtype, void* x, double factor, std::int64_t count, Stream stream) = 0;
};

// kernels/cpu: Highway, any instruction set. Stateless, so threads may share it.
std::unique_ptr<ReductionKernels> make_cpu_reduction();

}  // namespace shoal::kernels
