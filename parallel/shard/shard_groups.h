// The ranks that hold one copy of the model's state together, and those that hold the same shard.
#pragma once

#include "shoal/collectives/communicator.h"
#include "shoal/parallel/data/bucket_reduction.h"

namespace shoal::parallel {

// Splits of the data-parallel ranks by shard_place(). Both must outlive whatever is given them.
struct ShardGroups {
  collectives::Communicator* shard = nullptr;     // never null
  collectives::Communicator* replicas = nullptr;  // null: there is one shard group
  int rank() const { return shard->rank(); }
  int shards() const { return shard->size(); }
  int copies() const { return replicas ? replicas->size() : 1; }
};

// For a Reducer: reduce_scatter in the shard group, then all_reduce of the own part over replicas
// (MiCS's two hops). Afterwards a bucket's r-th part holds the sum, where r = groups.rank(); the
// rest of it is of no use. The second hop begins when somebody tests or waits.
std::shared_ptr<BucketReduction> make_shard_reduction(const ShardGroups& groups);

}  // namespace shoal::parallel
