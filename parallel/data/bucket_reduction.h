// Reduces a bucket of gradients: over all ranks (here), or at its owners (parallel/shard).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "shoal/collectives/communicator.h"
#include "shoal/kernels/reduction.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::parallel {

// Every rank makes the same calls in the same order, from one thread.
class BucketReduction {
 public:
  virtual ~BucketReduction() = default;
  virtual int ranks() const = 0;           // number of ranks; 1: start() is not called
  virtual int parts() const { return 1; }  // a bucket's length must be a multiple of it
  virtual MemoryResource& memory() = 0;    // for the buffers that start() reduces
  // Writes into that memory must be ordered on this stream before start() reads it.
  virtual Stream stream() const { return {}; }
  // Sums f32 data[0 .. count) in place. Does not block. The memory belongs to the Work until it is
  // done. Works must be tested and waited for in the order of the calls.
  virtual collectives::WorkPtr start(float* data, std::int64_t count) = 0;
  // Broadcasts the first rank's numbers to all ranks. Blocks.
  virtual void agree(std::span<std::int32_t> numbers) = 0;
  virtual void abort(std::string_view reason) = 0;
};

// Sums the squares of gradients over all ranks: `sum`, f64 [1] on a device, in place. The work is
// queued on `stream`, which waits for it; the host does not. `counts` must be true on exactly one
// of the ranks that hold the same gradients. If the sum of any rank is not finite, all results are
// not finite. Returns null if there is only one rank.
collectives::WorkPtr sum_squares_in_place(collectives::Communicator& ranks,
                                          kernels::ReductionKernels& kernels, const Tensor& sum,
                                          bool counts, Stream stream);

// all_reduce: every rank has the whole sum. `communicator` must outlive the result.
std::shared_ptr<BucketReduction> make_all_reduction(collectives::Communicator& communicator);
// For one rank: nothing is summed. Gradients are written on `stream` into `memory`, which must
// outlive the result.
std::shared_ptr<BucketReduction> make_no_reduction(MemoryResource& memory, Stream stream);

}  // namespace shoal::parallel
