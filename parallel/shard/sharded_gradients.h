// Reduces gradients to their owners: each rank of a shard group gets its part of every bucket,
// summed over all data-parallel ranks. Gradients are sums, never averages (decision 11). A step:
//   gradients.begin_step();
//   for each microbatch: forward; after the last forward: gradients.arm(); backward
//   gradients.finish();
// All calls come from one thread and are made on every rank of both groups.
//
// Level 1 is a Reducer: it keeps every gradient for the whole step and hands buckets over after the
// last backward, in agreed turns.
//
// Levels 2 and 3 hold a bucket's memory only from its first write to its reduction. A bucket is
// reduced as soon as no microbatch in flight will write it again. With one microbatch at a time,
// that is once per microbatch; with several in flight, after the last of their backwards. Sums
// accumulate in the f32 shard; shards are summed over replicas once, at the end of the step.
// Reductions follow the order of backward, so every rank must run the same forwards and backwards
// in the same order.
#pragma once

#include <memory>

#include "shoal/kernels/kernels.h"
#include "shoal/parallel/shard/shard_layout.h"
#include "shoal/runtime/trace/trace.h"

namespace shoal::parallel {

struct ShardedGradientStatistics {
  std::int64_t steps = 0;
  std::int64_t reduced_bytes = 0;         // full buckets that were handed over
  std::int64_t hidden_bytes = 0;          // bytes known to be reduced before finish()
  std::int64_t launched_in_backward = 0;  // buckets handed over before finish()
  std::int64_t most_full_bytes = 0;       // levels 2 and 3: peak of buckets with memory
  double exposed_seconds = 0;             // waiting for communication
};

class ShardedGradients {
 public:
  virtual ~ShardedGradients() = default;  // aborts the groups if a step is running
  ShardedGradients(const ShardedGradients&) = delete;
  ShardedGradients& operator=(const ShardedGradients&) = delete;

  virtual void begin_step() = 0;
  // Call after the step's last forward, before its backward.
  virtual void arm() = 0;
  // Call after the last backward; parts are sums afterwards. With host memory it blocks until they
  // are. On a device the kernels' stream waits and the host continues. Throws the communicators'
  // Errors.
  virtual void finish() = 0;
  // Call instead of finish() if the capture of the step failed: then nothing that the step handed
  // over has begun. Forgets the step.
  virtual void abandon_step() = 0;
  // This rank's part of a bucket, f32 [part_count(bucket)]; valid after finish().
  virtual Tensor part(int bucket) const = 0;
  virtual ShardedGradientStatistics statistics() const = 0;

 protected:
  ShardedGradients() = default;
};

// Sets `gradient` and hooks of the layout's parameters. `layout`, `kernels` and `memory` must
// outlive the result, `tracer` may be null. MemoryTag::gradients counts full buckets (in symmetric
// memory) and the shard.
std::unique_ptr<ShardedGradients> make_sharded_gradients(const ShardLayout& layout,
                                                         kernels::Kernels& kernels,
                                                         MemoryResource& memory,
                                                         Tracer* tracer = nullptr);

}  // namespace shoal::parallel
