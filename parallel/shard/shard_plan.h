// Decides which rank owns which elements. Pure functions, equal on every rank (decision 17).
//
// Parameters lie in a flat layout, cut into buckets. Bucket lengths are multiples of the shard
// group's size; rank r of the group owns the r-th part of every bucket. A rank's parts,
// concatenated, are its shard (ZeRO, Rajbhandari et al., SC 2020).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shoal/parallel/data/bucket_plan.h"

namespace shoal::parallel {

struct ShardPlanOptions {
  int shards = 1;                              // ranks of a shard group
  std::int64_t bucket_elements = 500'000'000;  // sdp_reduce_bucket_size
  // Elements of the bucket that backward completes first; 0: as the others.
  std::int64_t first_bucket_elements = 0;
  // Cut a parameter larger than a bucket over several buckets. If buckets come and go one by one
  // (level 2), give it a bucket of its own instead.
  bool cut = true;

  BucketOptions bucket_options() const;
};

struct ShardPlan {
  int shards = 1;
  // The length of each bucket is a multiple of `shards` cache lines. The parameters that backward
  // completes first come first.
  BucketPlan flat;
  // The first `unit_buckets` buckets belong to units and are whole only while those units compute
  // (level 3).
  int unit_buckets = 0;

  const GradientBucket& bucket(int index) const {
    return flat.buckets[static_cast<std::size_t>(index)];
  }
  int buckets() const { return static_cast<int>(flat.buckets.size()); }
  // A rank's part of a bucket: its elements, and its start in the rank's shard.
  std::int64_t part_count(int index) const {
    return (bucket(index).end - bucket(index).begin) / shards;
  }
  std::int64_t part_begin(int index) const { return bucket(index).begin / shards; }
  std::int64_t shard_count() const { return flat.count / shards; }
  std::int64_t unit_count() const {  // elements of all unit buckets
    return unit_buckets == 0 ? 0 : bucket(unit_buckets - 1).end;
  }
};

// Sets of parameters (indices into `counts`) that share buckets with no other parameters. Ranks
// that hold the same set cut it alike, whatever other parameters they hold. A parameter is in at
// most one set.
using ShardSets = std::span<const std::vector<int>>;

// Levels 1 and 2. `counts`: elements of each parameter in the order of registration.
ShardPlan plan_shards(std::span<const std::int64_t> counts, const ShardPlanOptions& options,
                      ShardSets apart = {});

// Level 3. `units`: the parameters (indices into `counts`) that each unit reads, in the order of
// the forward. A bucket holds parameters of one set of `apart` that the same units read: one bucket
// per unit, and one per group of units that share parameters (tied weights). Parameters of at most
// `persistence_threshold` elements and those that no unit reads stay whole. They follow in buckets
// of `options`.
ShardPlan plan_unit_shards(std::span<const std::int64_t> counts,
                           std::span<const std::vector<int>> units,
                           std::int64_t persistence_threshold, const ShardPlanOptions& options,
                           ShardSets apart = {});

// Consecutive elements of a parameter that one rank owns.
struct ShardSegment {
  int parameter = 0;
  int bucket = 0;
  std::int64_t first = 0;   // first element in the parameter
  std::int64_t count = 0;   // elements, > 0
  std::int64_t offset = 0;  // elements from the start of the rank's shard
};
// The segments of rank `rank` of a shard group, in the order of its shard. Together the ranks own
// every element once.
std::vector<ShardSegment> shard_segments(const ShardPlan& plan, int rank);

// Colors and keys that split a communicator of `ranks` data-parallel ranks. `degree` consecutive
// ranks form a shard group; the ranks of a replica group hold the same shard (MiCS, Zhang et al.,
// VLDB 2022). Throws if `ranks` is no multiple of `degree`.
struct ShardPlace {
  int shard_color = 0, shard_key = 0;
  int replica_color = 0, replica_key = 0;
};
ShardPlace shard_place(int rank, int ranks, int degree);

}  // namespace shoal::parallel
