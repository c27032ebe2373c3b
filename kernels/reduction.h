// Reductions across ranks' buffers: what collectives may use of kernels.
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

  // destination[i] = reduce over sources[s][i], s in order (a left fold from sources[0]); 16-bit
  // floats accumulate in f32 and are rounded once. destination may be one of the sources.
  // Single-threaded: the ranks are the parallelism. No alignment is assumed.
  virtual void reduce(Reduce operation, DType dtype, std::span<const void* const> sources,
                      void* destination, std::int64_t count, Stream stream) = 0;
  // The same result stored into every destination, in one pass: what a rank does with its shard
  // when it maps its peers' buffers. A destination may be one of the sources; otherwise none may
  // overlap another or a source. `past_caches`: with stores that leave the caches alone, which pays
  // where sources and destinations together exceed the last cache and the destinations are not
  // sources; ordered before whatever the caller stores next.
  virtual void reduce_into_all(Reduce operation, DType dtype, std::span<const void* const> sources,
                               std::span<void* const> destinations, std::int64_t count,
                               bool past_caches, Stream stream) = 0;
  // The fold of 16-bit floats as the f32 that it is made in, for sums that are rounded elsewhere,
  // once they are whole. `destination` is aligned to its element, and none of the sources.
  virtual void reduce_widened(Reduce operation, DType dtype, std::span<const void* const> sources,
                              float* destination, std::int64_t count, Stream stream) = 0;
  // x *= factor (avg, pre-multiplied sum); floating dtypes only. No alignment is assumed.
  virtual void scale(DType dtype, void* x, double factor, std::int64_t count, Stream stream) = 0;
};

// kernels/cpu: Highway, any instruction set. Keeps nothing, so threads may share it.
std::unique_ptr<ReductionKernels> make_cpu_reduction();

}  // namespace shoal::kernels
