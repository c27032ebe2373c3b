// The ranks that together hold one copy of the model's state, and the ranks that hold the same
// shard.
#pragma once

#include "shoal/collectives/communicator.h"
#include "shoal/parallel/data/bucket_reduction.h"

namespace shoal::parallel {

// Splits of the data-parallel ranks by shard_place(). Both must outlive every object that receives
// them.
struct ShardGroups {
  collectives::Communicator* shard = nullptr;     // never null
  collectives::Communicator* replicas = nullptr;  // null: there is one shard group
  int rank() const { return shard->rank(); }
  int shards() const { return shard->size(); }
  int copies() const { return replicas ? replicas->size() : 1; }
};

// For a Reducer: reduce_scatter in the shard group, then all_reduce of this rank's part over
// replicas (MiCS's two hops). Afterwards part groups.rank() of a bucket holds the sum; the rest is
// undefined. The second hop begins when the caller tests or waits.
std::shared_ptr<BucketReduction> make_shard_reduction(const ShardGroups& groups);

}  // namespace shoal::parallel
