// Decides which training state of a model is sharded, how, and over which ranks.
#pragma once

#include <span>
#include <vector>

#include "shoal/nn/autograd/parameter.h"
#include "shoal/parallel/shard/shard_groups.h"
#include "shoal/parallel/shard/shard_plan.h"
#include "shoal/parallel/shard/sharding_options.h"

namespace shoal::parallel {

struct ShardLayout {
  std::vector<nn::Parameter*> parameters;  // trainable, in the order of registration
  std::vector<nn::Parameter*> frozen;      // the others: every rank keeps them whole
  ShardingOptions options;
  ShardGroups groups;
  ShardPlan plan;                            // plan of `parameters`
  std::vector<ShardSegment> segments;        // this rank's segments
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
