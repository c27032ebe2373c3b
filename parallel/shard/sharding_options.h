// The training state to shard, and the number of ranks that share it.
//
//   plan.sharding = {.level = 2, .degree = 8};  // optimizer state and gradients, over 8 ranks each
#pragma once

#include <cstdint>

namespace shoal::parallel {

struct ShardingOptions {
  // 1: optimizer state (shard_optimizer_state). 2: gradients too. 3: parameters too
  // (sharded_data_parallel_degree > 1 in SMP). In a ParallelPlan, 0 means no sharding.
  int level = 1;
  int degree = 0;  // ranks that share one copy (fewer than all: MiCS); 0: all
  std::int64_t bucket_elements = 500'000'000;  // sdp_reduce_bucket_size
  std::int64_t first_bucket_elements = 0;      // size of the first ready bucket; 0: like the others
  std::int64_t persistence_threshold = 1'000'000;    // sdp_param_persistence_threshold, elements
  std::int64_t max_live_parameters = 1'000'000'000;  // sdp_max_live_parameters, elements
  // Levels 2 and 3: maximum number of gradient buckets being reduced; the next one waits. Buckets
  // that are still being written also occupy full memory (a tied weight's, from the head's backward
  // to the embeddings' backward).
  int buckets_in_flight = 2;
  bool operator==(const ShardingOptions&) const = default;
};

}  // namespace shoal::parallel
