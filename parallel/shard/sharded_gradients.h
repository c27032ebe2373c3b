// Sums gradients at their owners: each rank of a shard group gets the sum, over all data-parallel
// ranks, of its part of every bucket. Gradients are sums, never averages (decision 11). A step:
//   gradients.begin_step();
//   for each microbatch: forward; after the last forward: gradients.arm(); backward
//   gradients.finish();
// One thread. All calls are made on every rank of both groups.
//
// Level 1 keeps every gradient for the whole step and hands buckets over behind the last backward,
// in agreed turns (it is a Reducer). Levels 2 and 3 have a bucket's memory only from its first
// write to its reduction, which happens whenever no use of its parameters is left: with one
// microbatch at a time once for each, with several in flight when the last of them has been walked
// back. Sums gather in the f32 shard; replicas add theirs once, after the last. There the order is
// that of the program: every rank must run the same forwards and backwards in the same order.
#pragma once

#include <memory>

#include "shoal/kernels/kernels.h"
#include "shoal/parallel/shard/shard_layout.h"
#include "shoal/runtime/trace/trace.h"

namespace shoal::parallel {

struct ShardedGradientStatistics {
  std::int64_t steps = 0;
  std::int64_t reduced_bytes = 0;         // full buckets that were handed over
  std::int64_t hidden_bytes = 0;          // of these, seen reduced before finish()
  std::int64_t launched_in_backward = 0;  // buckets handed over before finish()
  std::int64_t most_full_bytes = 0;       // levels 2 and 3: buckets that had memory at one time
  double exposed_seconds = 0;             // waited for communication
};

class ShardedGradients {
 public:
  virtual ~ShardedGradients() = default;  // in the middle of a step: aborts the groups
  ShardedGradients(const ShardedGradients&) = delete;
  ShardedGradients& operator=(const ShardedGradients&) = delete;

  virtual void begin_step() = 0;
  // After the last forward of the step, before its backward.
  virtual void arm() = 0;
  // After the last backward: blocks until parts are sums; on a device the kernels' stream, not the
  // host. Throws the communicators' Errors.
  virtual void finish() = 0;
  // Instead of finish(), of a step that was to be captured and could not be, so that nothing it
  // handed over has begun: forgets it.
  virtual void abandon_step() = 0;
  // This rank's part of a bucket, f32 [part_count(bucket)]; of any use after finish().
  virtual Tensor part(int bucket) const = 0;
  virtual ShardedGradientStatistics statistics() const = 0;

 protected:
  ShardedGradients() = default;
};

// `captured`: steps are, and `host_work` is their sums' (null: graphs hold them); outlives the
// gradients. What a step does and allocates, and when, then hangs on no time.
struct ShardedGradientOptions {
  Tracer* tracer = nullptr;  // may be null
  bool captured = false;
  const nn::HostWork* host_work = nullptr;
};

// Gives the layout's parameters their `gradient` and hooks. `layout`, `kernels` and `memory` must
// outlive the result. MemoryTag::gradients counts full buckets (in symmetric
// memory) and the shard.
std::unique_ptr<ShardedGradients> make_sharded_gradients(
    const ShardLayout& layout, kernels::Kernels& kernels, MemoryResource& memory,
    const ShardedGradientOptions& options = {});

}  // namespace shoal::parallel
