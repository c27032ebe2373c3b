// Decides which training state of a model is sharded, how, and over which ranks.
#pragma once

#include <span>
#include <vector>

#include "shoal/nn/autograd/parameter.h"
#include "shoal/parallel/shard/shard_groups.h"
#include "shoal/parallel/shard/shard_plan.h"

namespace shoal::parallel {

struct ShardingOptions {
  // 1: optimizer state (shard_optimizer_state). 2: gradients too. 3: parameters too
  // (sharded_data_parallel_degree > 1 in SMP). A ParallelPlan also knows 0: no sharding.
  int level = 1;
  int degree = 0;  // ranks that share one copy (fewer than all: MiCS); 0: all
  std::int64_t bucket_elements = 500'000'000;        // sdp_reduce_bucket_size
  std::int64_t first_bucket_elements = 0;            // of the first ready bucket; 0: as others
  std::int64_t persistence_threshold = 1'000'000;    // sdp_param_persistence_threshold, elements
  std::int64_t max_live_parameters = 1'000'000'000;  // sdp_max_live_parameters, elements
  // Levels 2 and 3: limit of full gradient buckets on their way to their owners; the next one
  // waits. Buckets that are being written are full too (a tied weight's from the head's backward to
  // the embeddings' backward).
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
  std::vector<int> set_of;                   // by bucket: index of its set in `apart`; -1: none

  ShardPlanOptions plan_options() const;
};

// Call with the same `parameters` and options on every rank of both groups. `units` (level 3,
// otherwise ignored): the parameters that each unit of the whole model reads, including units of
// other pipeline stages.
//
// `apart`: sets of parameters that get buckets of their own. Ranks of other shard groups that have
// the same set, in the same order, then own the same elements of it. The sets are tied weights of
// other stages and parameters that are replicated over tensor parallelism. Parameters that are not
// trainable are ignored.
//
// Parameters and groups must outlive the result. With one rank per shard group, level 3 has nothing
// to drop and keeps every parameter whole. Throws if an option is out of range.
ShardLayout make_shard_layout(std::span<nn::Parameter* const> parameters, const ShardGroups& groups,
                              const ShardingOptions& options,
                              std::span<const std::vector<nn::Parameter*>> units = {},
                              std::span<const std::vector<nn::Parameter*>> apart = {});

}  // namespace shoal::parallel
