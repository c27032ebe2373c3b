// What of a model's training state is sharded, how, and with whom.
#pragma once

#include <span>
#include <vector>

#include "shoal/nn/autograd/parameter.h"
#include "shoal/parallel/shard/shard_groups.h"
#include "shoal/parallel/shard/shard_plan.h"

namespace shoal::parallel {

struct ShardingOptions {
  // 1: optimizer state (shard_optimizer_state). 2: gradients too. 3: parameters too
  // (sharded_data_parallel_degree > 1 in SMP). A ParallelPlan knows 0 too: nothing.
  int level = 1;
  int degree = 0;  // replicas that share one copy (MiCS where fewer than all); 0: all
  std::int64_t bucket_elements = 500'000'000;  // sdp_reduce_bucket_size
  std::int64_t first_bucket_elements = 0;      // of the one that is ready first; 0: as the others
  std::int64_t persistence_threshold = 1'000'000;    // sdp_param_persistence_threshold, elements
  std::int64_t max_live_parameters = 1'000'000'000;  // sdp_max_live_parameters, elements
  // Levels 2 and 3: full buckets of gradients that may be on their way to their owners; the next
  // one waits. Full at a time: these, and those that are being written (of a tied weight, from the
  // head's backward to the embeddings').
  int buckets_in_flight = 2;
  bool operator==(const ShardingOptions&) const = default;
};

struct ShardLayout {
  std::vector<nn::Parameter*> parameters;  // trainable, in the order of registration
  std::vector<nn::Parameter*> frozen;      // the others: every rank keeps them whole
  ShardingOptions options;
  ShardGroups groups;
  ShardPlan plan;                            // of `parameters`
  std::vector<ShardSegment> segments;        // this rank's
  std::vector<std::vector<int>> buckets_of;  // by parameter
  std::vector<int> set_of;                   // by bucket: which of `apart` it is of; -1: of none

  ShardPlanOptions plan_options() const;
};

// The same `parameters` and options on every rank of both groups. `units` (level 3, else passed
// over): what each unit of the whole model reads, also those of other pipeline stages. `apart`:
// sets of parameters that lie in buckets of their own, so that ranks of other shard groups that
// have the same set (in that order) own the same elements of it: tied weights of other stages, what
// is replicated over tensor parallelism. Parameters that are not trainable are passed over.
// Parameters and groups must outlive the result. With one rank a shard group, level 3 has nothing
// to drop and keeps every parameter whole. Throws on options out of range.
ShardLayout make_shard_layout(std::span<nn::Parameter* const> parameters, const ShardGroups& groups,
                              const ShardingOptions& options,
                              std::span<const std::vector<nn::Parameter*>> units = {},
                              std::span<const std::vector<nn::Parameter*>> apart = {});

}  // namespace shoal::parallel
