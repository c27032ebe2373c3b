// How a bucket of gradients becomes a sum: over all ranks (here), or at its owners
// (parallel/shard).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "shoal/collectives/communicator.h"
#include "shoal/kernels/reduction.h"
#include "shoal/nn/capture/host_work.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::parallel {

// Every rank makes the same calls in the same order, from one thread.
class BucketReduction {
 public:
  virtual ~BucketReduction() = default;
  virtual int ranks() const = 0;           // whose gradients are summed; 1: start() is not called
  virtual int parts() const { return 1; }  // that a bucket's length must divide into
  virtual MemoryResource& memory() = 0;    // for what start() reduces
  // What writes of that memory are ordered on before start() reads it.
  virtual Stream stream() const { return {}; }
  // Sums f32 data[0 .. count) in place. Does not block; the memory belongs to the Work until it is
  // done. Works may be tested and waited for in the order of the calls only.
  virtual collectives::WorkPtr start(float* data, std::int64_t count) = 0;
  // Everybody gets the first rank's numbers. Blocks.
  virtual void agree(std::span<std::int32_t> numbers) = 0;
  virtual void abort(std::string_view reason) = 0;
};

// The sum of squares of gradients, f64 [1] of a device, over all ranks, in place and queued on
// `stream`, which waits for it; the host does not. Of ranks with the same gradients one `counts`. A
// sum that is not finite on any rank makes it not finite on all. Null: there is one rank.
collectives::WorkPtr sum_squares_in_place(collectives::Communicator& ranks,
                                          kernels::ReductionKernels& kernels, const Tensor& sum,
                                          bool counts, Stream stream);

// The same in two: what the device computes, and what the ranks exchange.
void scale_squares(kernels::ReductionKernels& kernels, const Tensor& sum, bool counts,
                   Stream stream);
collectives::WorkPtr add_squares(collectives::Communicator& ranks, const Tensor& sum,
                                 Stream stream);

// all_reduce: every rank has the whole sum. `communicator` must outlive the result.
std::shared_ptr<BucketReduction> make_all_reduction(collectives::Communicator& communicator);
// One rank's: nothing is summed, and gradients, written on `stream`, lie in `memory`, which must
// outlive the result.
std::shared_ptr<BucketReduction> make_no_reduction(MemoryResource& memory, Stream stream);

// For steps that are captured although hosts take part in sums: start() and the streams' waits are
// `host_work`, so that each replay makes them, and Works of a captured step are good for
// block_stream() alone. Outside a capture it is `reduction`. `host_work` must outlive the result,
// whose end aborts where a replay that failed has left a sum under way.
std::shared_ptr<BucketReduction> make_replayed_reduction(std::shared_ptr<BucketReduction> reduction,
                                                         const nn::HostWork& host_work);

}  // namespace shoal::parallel
