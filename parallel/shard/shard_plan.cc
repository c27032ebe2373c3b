#include "shoal/parallel/shard/shard_plan.h"

#include <algorithm>
#include <map>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

constexpr std::int64_t kBytes = 4;     // f32
constexpr std::int64_t kGranule = 16;  // elements in a cache line

std::int64_t padded(std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; }

std::size_t at(int index) { return static_cast<std::size_t>(index); }

void check(const ShardPlanOptions& options) {
  SHOAL_CHECK(options.shards > 0, "{} shards; a shard group has 1 rank or more", options.shards);
  SHOAL_CHECK(options.bucket_elements > 0 && options.first_bucket_elements >= 0,
              "buckets of {} elements, the first of {} (sdp_reduce_bucket_size); give 1 or more",
              options.bucket_elements, options.first_bucket_elements);
}

// For each parameter, the units that read it.
std::vector<std::vector<int>> readers_of(std::size_t parameters,
                                         std::span<const std::vector<int>> units) {
  std::vector<std::vector<int>> readers(parameters);
  for (std::size_t unit = 0; unit < units.size(); ++unit)
    for (const int parameter : units[unit]) {
      SHOAL_CHECK(parameter >= 0 && at(parameter) < parameters, "unit {} reads parameter {} of {}",
                  unit, parameter, parameters);
      auto& list = readers[at(parameter)];
      if (list.empty() || list.back() != static_cast<int>(unit))
        list.push_back(static_cast<int>(unit));
    }
  return readers;
}

// Every parameter once: first the parameters that are in no set, then the sets.
std::vector<std::vector<int>> sets_of(std::size_t parameters, ShardSets apart) {
  std::vector<char> taken(parameters, 0);
  std::vector<std::vector<int>> sets(1);
  for (const std::vector<int>& set : apart) {
    for (const int parameter : set) {
      SHOAL_CHECK(parameter >= 0 && at(parameter) < parameters && !taken[at(parameter)],
                  "parameter {} of {} is unknown, or in two sets", parameter, parameters);
      taken[at(parameter)] = 1;
    }
    sets.push_back(set);
  }
  for (std::size_t i = 0; i < parameters; ++i)
    if (!taken[i]) sets.front().push_back(static_cast<int>(i));
  return sets;
}

// Appends buckets of these parameters to the plan.
void append(BucketPlan& plan, std::span<const int> parameters, std::span<const std::int64_t> counts,
            const ShardPlanOptions& options) {
  std::vector<std::int64_t> own;
  for (const int parameter : parameters) own.push_back(counts[at(parameter)]);
  BucketPlan more = plan_buckets(own, options.bucket_options());
  for (GradientBucket& bucket : more.buckets) {
    bucket.begin += plan.count;
    bucket.end += plan.count;
    for (GradientBucket::Entry& entry : bucket.entries) {
      entry.parameter = parameters[at(entry.parameter)];
      entry.offset += plan.count;
    }
    plan.buckets.push_back(std::move(bucket));
  }
  for (std::size_t i = 0; i < parameters.size(); ++i)
    plan.offsets[at(parameters[i])] = more.offsets[i] + plan.count;
  plan.count += more.count;
}

}  // namespace

BucketOptions ShardPlanOptions::bucket_options() const {
  // The cap keeps bytes within 64 bits; no real bucket reaches it.
  const auto bytes = [](std::int64_t elements) {
    return std::min(elements, std::int64_t{1} << 60) * kBytes;
  };
  return {.bucket_bytes = bytes(bucket_elements),
          .first_bucket_bytes =
              bytes(first_bucket_elements > 0 ? first_bucket_elements : bucket_elements),
          .parts = shards,
          .cut = cut};
}

ShardPlan plan_shards(std::span<const std::int64_t> counts, const ShardPlanOptions& options,
                      ShardSets apart) {
  check(options);
  ShardPlan plan;
  plan.shards = options.shards;
  plan.flat.offsets.resize(counts.size());
  for (const std::vector<int>& set : sets_of(counts.size(), apart))
    append(plan.flat, set, counts, options);
  return plan;
}

ShardPlan plan_unit_shards(std::span<const std::int64_t> counts,
                           std::span<const std::vector<int>> units,
                           std::int64_t persistence_threshold, const ShardPlanOptions& options,
                           ShardSets apart) {
  check(options);
  SHOAL_CHECK(persistence_threshold >= 0,
              "sdp_param_persistence_threshold = {}; give 0 or more elements",
              persistence_threshold);
  const auto readers = readers_of(counts.size(), units);
  const auto sets = sets_of(counts.size(), apart);
  // Parameters by set and readers.
  std::map<std::pair<std::size_t, std::vector<int>>, std::vector<int>> groups;
  std::vector<std::vector<int>> whole(sets.size());
  for (std::size_t set = 0; set < sets.size(); ++set)
    for (const int i : sets[set]) {
      if (readers[at(i)].empty() || counts[at(i)] <= persistence_threshold)
        whole[set].push_back(i);
      else
        groups[{set, readers[at(i)]}].push_back(i);
    }
  ShardPlan plan;
  plan.shards = options.shards;
  plan.flat.offsets.resize(counts.size());
  for (const auto& [key, parameters] : groups) {
    GradientBucket bucket{{}, plan.flat.count, plan.flat.count};
    for (const int parameter : parameters) {
      plan.flat.offsets[at(parameter)] = bucket.end;
      bucket.entries.push_back({parameter, 0, bucket.end, counts[at(parameter)]});
      bucket.end += padded(counts[at(parameter)], kGranule);
    }
    bucket.end = bucket.begin + padded(bucket.end - bucket.begin, kGranule * options.shards);
    plan.flat.count = bucket.end;
    plan.flat.buckets.push_back(std::move(bucket));
  }
  plan.unit_buckets = plan.buckets();
  for (const std::vector<int>& set : whole) append(plan.flat, set, counts, options);
  return plan;
}

std::vector<ShardSegment> shard_segments(const ShardPlan& plan, int rank) {
  SHOAL_CHECK(rank >= 0 && rank < plan.shards, "rank {} of a shard group of {}", rank, plan.shards);
  std::vector<ShardSegment> segments;
  for (int b = 0; b < plan.buckets(); ++b) {
    const std::int64_t begin = plan.bucket(b).begin + rank * plan.part_count(b);
    const std::int64_t end = begin + plan.part_count(b);
    for (const GradientBucket::Entry& entry : plan.bucket(b).entries) {
      const std::int64_t from = std::max(begin, entry.offset);
      const std::int64_t to = std::min(end, entry.offset + entry.count);
      if (from >= to) continue;
      segments.push_back({entry.parameter, b, entry.first + from - entry.offset, to - from,
                          plan.part_begin(b) + from - begin});
    }
  }
  return segments;
}

ShardPlace shard_place(int rank, int ranks, int degree) {
  SHOAL_CHECK(rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
  if (degree < 1 || ranks % degree != 0) {
    std::string fit;
    for (int d = 1; d <= ranks; ++d)
      if (ranks % d == 0) fit += fmt::format("{}{}", fit.empty() ? "" : ", ", d);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("sharded_data_parallel_degree = {} does not divide the {} "
                            "data-parallel ranks",
                            degree, ranks),
                fmt::format("use one of {}", fit));
  }
  return {rank / degree, rank % degree, rank % degree, rank / degree};
}

}  // namespace shoal::parallel
