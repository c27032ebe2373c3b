#include "shoal/parallel/shard/shard_plan.h"

#include <map>

#include "support/error_text.h"
#include <gmock/gmock.h>

namespace shoal::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Odd, tiny, empty and larger than a bucket.
const std::vector<std::int64_t> kCounts{61 * 24, 16 * 24, 24, 24, 24 * 72, 72,
                                        0,       5000,    1,  17, 4096};

// Every element of every parameter has one owner, and lies where the layout says.
void expect_partition(const ShardPlan& plan, const std::vector<std::int64_t>& counts) {
  std::vector<std::vector<int>> owners(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i)
    owners[i].assign(static_cast<std::size_t>(counts[i]), -1);
  std::int64_t begin = 0;
  for (int b = 0; b < plan.buckets(); ++b) {
    EXPECT_EQ(plan.bucket(b).begin, begin);
    begin = plan.bucket(b).end;
    EXPECT_EQ((begin - plan.bucket(b).begin) % (16 * plan.shards), 0);
    for (const auto& entry : plan.bucket(b).entries) {
      EXPECT_EQ(entry.offset,
                plan.flat.offsets[static_cast<std::size_t>(entry.parameter)] + entry.first);
      EXPECT_EQ(entry.offset % 16, 0);
      EXPECT_GE(entry.offset, plan.bucket(b).begin);
      EXPECT_LE(entry.offset + entry.count, plan.bucket(b).end);
    }
  }
  EXPECT_EQ(plan.flat.count, begin);
  EXPECT_EQ(plan.shard_count() * plan.shards, begin);
  for (int rank = 0; rank < plan.shards; ++rank) {
    std::int64_t end = 0;
    for (const ShardSegment& segment : shard_segments(plan, rank)) {
      EXPECT_GT(segment.count, 0);
      EXPECT_GE(segment.offset, end);
      end = segment.offset + segment.count;
      EXPECT_LE(end, plan.shard_count());
      // The shard's element belongs to the part, and the part to the layout.
      const std::int64_t in_layout = plan.bucket(segment.bucket).begin +
                                     rank * plan.part_count(segment.bucket) + segment.offset -
                                     plan.part_begin(segment.bucket);
      EXPECT_EQ(in_layout,
                plan.flat.offsets[static_cast<std::size_t>(segment.parameter)] + segment.first);
      for (std::int64_t i = segment.first; i < segment.first + segment.count; ++i) {
        int& owner =
            owners[static_cast<std::size_t>(segment.parameter)].at(static_cast<std::size_t>(i));
        EXPECT_EQ(owner, -1) << "element " << i << " of " << segment.parameter;
        owner = rank;
      }
    }
  }
  for (std::size_t i = 0; i < owners.size(); ++i)
    EXPECT_THAT(owners[i], ::testing::Each(::testing::Ge(0))) << "parameter " << i;
}

TEST(ShardPlan, GivesEveryElementOneOwner) {
  for (int ranks = 1; ranks <= 17; ++ranks)
    for (const std::int64_t bucket : {1, 1000, 4096, 1'000'000})
      for (const bool cut : {true, false}) {
        SCOPED_TRACE(fmt::format("{} ranks, buckets of {}, cut {}", ranks, bucket, cut));
        const ShardPlan plan =
            plan_shards(kCounts, {.shards = ranks, .bucket_elements = bucket, .cut = cut});
        expect_partition(plan, kCounts);
        if (cut || bucket < 1000) continue;
        for (int b = 0; b < plan.buckets(); ++b)
          for (const auto& entry : plan.bucket(b).entries)
            EXPECT_EQ(entry.count, kCounts[static_cast<std::size_t>(entry.parameter)]);
      }
}

TEST(ShardPlan, GivesEachUnitABucketAndSharedParametersTheirOwn) {
  // The first and the last unit read parameter 0; no unit reads parameter 10.
  const std::vector<std::vector<int>> units{{0, 1}, {2, 3, 4, 5, 6}, {7, 8}, {9, 0}};
  for (int ranks = 1; ranks <= 17; ++ranks) {
    const ShardPlan plan = plan_unit_shards(kCounts, units, 0, {.shards = ranks});
    expect_partition(plan, kCounts);
    ASSERT_EQ(plan.unit_buckets, 5);
    const auto parameters = [&](int b) {
      std::vector<int> all;
      for (const auto& entry : plan.bucket(b).entries) all.push_back(entry.parameter);
      return all;
    };
    EXPECT_THAT(parameters(0), ElementsAre(1));
    EXPECT_THAT(parameters(1), ElementsAre(0));
    EXPECT_THAT(parameters(2), ElementsAre(2, 3, 4, 5));
    EXPECT_THAT(parameters(3), ElementsAre(7, 8));
    EXPECT_THAT(parameters(4), ElementsAre(9));
    const ShardPlan persistent = plan_unit_shards(kCounts, units, 72, {.shards = ranks});
    expect_partition(persistent, kCounts);
    EXPECT_EQ(persistent.unit_buckets, 4);
    for (int b = 0; b < persistent.unit_buckets; ++b)
      for (const auto& entry : persistent.bucket(b).entries)
        EXPECT_GT(kCounts[static_cast<std::size_t>(entry.parameter)], 72);
    EXPECT_EQ(plan_unit_shards(kCounts, units, 1 << 20, {.shards = ranks}).unit_buckets, 0);
  }
}

// The ranges of a parameter that a rank owns: (first, count).
std::vector<std::pair<std::int64_t, std::int64_t>> owned(const ShardPlan& plan, int rank,
                                                         int parameter) {
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;
  for (const ShardSegment& segment : shard_segments(plan, rank))
    if (segment.parameter == parameter) runs.emplace_back(segment.first, segment.count);
  return runs;
}

TEST(ShardPlan, DividesASetAlikeWhateverElseExists) {
  // Parameters 0 and 7 are tied with another stage, which has only one parameter besides.
  const std::vector<std::int64_t> other{kCounts[7], 999, kCounts[0]};
  const std::vector<std::vector<int>> here{{0, 7}}, there{{2, 0}};
  const std::vector<std::vector<int>> units{{0, 1}, {2, 3, 4, 5, 6}, {7, 8, 10}, {9, 0}},
      other_units{{2}, {}, {0}, {1, 2}};
  for (const int ranks : {1, 2, 3, 8})
    for (const std::int64_t bucket : {1000, 4096, 1'000'000})
      for (const int level : {1, 2, 3}) {
        SCOPED_TRACE(fmt::format("{} ranks, buckets of {}, level {}", ranks, bucket, level));
        const ShardPlanOptions options{
            .shards = ranks, .bucket_elements = bucket, .cut = level == 1};
        const ShardPlan one = level < 3 ? plan_shards(kCounts, options, here)
                                        : plan_unit_shards(kCounts, units, 100, options, here);
        const ShardPlan two = level < 3 ? plan_shards(other, options, there)
                                        : plan_unit_shards(other, other_units, 100, options, there);
        expect_partition(one, kCounts);
        expect_partition(two, other);
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(owned(one, rank, 0), owned(two, rank, 2));
          EXPECT_EQ(owned(one, rank, 7), owned(two, rank, 0));
        }
        for (int b = 0; b < one.buckets(); ++b) {
          int of_set = 0;
          for (const auto& entry : one.bucket(b).entries)
            of_set += entry.parameter == 0 || entry.parameter == 7;
          EXPECT_TRUE(of_set == 0 || of_set == std::ssize(one.bucket(b).entries)) << b;
        }
      }
  EXPECT_THAT(test::error_text(
                  [&] { plan_shards(kCounts, {}, std::vector<std::vector<int>>{{1, 2}, {2}}); }),
              HasSubstr("parameter 2 of 11 is unknown, or in two sets"));
}

TEST(ShardPlan, KeepsParametersUpToTheThresholdWhole) {
  const std::vector<std::int64_t> counts = {39, 40, 41};
  const ShardPlan plan = plan_unit_shards(counts, std::vector<std::vector<int>>{{0, 1, 2}}, 40, {});
  ASSERT_EQ(plan.unit_buckets, 1);
  ASSERT_EQ(plan.bucket(0).entries.size(), 1U);
  EXPECT_EQ(plan.bucket(0).entries[0].parameter, 2);
}

TEST(ShardPlan, PutsConsecutiveRanksIntoAShardGroup) {
  for (int ranks = 1; ranks <= 17; ++ranks)
    for (int degree = 1; degree <= ranks; ++degree) {
      if (ranks % degree != 0) {
        EXPECT_THAT(
            test::error_text([&] { shard_place(0, ranks, degree); }),
            HasSubstr(fmt::format("sharded_data_parallel_degree = {} does not divide the {} "
                                  "data-parallel ranks",
                                  degree, ranks)));
        continue;
      }
      std::map<int, std::vector<int>> shards, replicas;
      for (int rank = 0; rank < ranks; ++rank) {
        const ShardPlace place = shard_place(rank, ranks, degree);
        EXPECT_EQ(place.shard_key, std::ssize(shards[place.shard_color]));
        EXPECT_EQ(place.replica_key, std::ssize(replicas[place.replica_color]));
        shards[place.shard_color].push_back(rank);
        replicas[place.replica_color].push_back(rank);
      }
      EXPECT_EQ(std::ssize(shards), ranks / degree);
      EXPECT_EQ(std::ssize(replicas), degree);
      for (const auto& [color, members] : shards)
        for (std::size_t i = 1; i < members.size(); ++i) EXPECT_EQ(members[i], members[i - 1] + 1);
      for (const auto& [color, members] : replicas)
        for (std::size_t i = 1; i < members.size(); ++i)
          EXPECT_EQ(members[i], members[i - 1] + degree);
    }
  EXPECT_THAT(test::error_text([] { shard_place(0, 6, 4); }), HasSubstr("use one of 1, 2, 3, 6"));
}

TEST(ShardPlan, RefusesWhatIsOutOfRange) {
  const auto text = [](const ShardPlanOptions& options) {
    return test::error_text([&] { plan_shards(kCounts, options); });
  };
  EXPECT_THAT(text({.shards = 0}), HasSubstr("0 shards"));
  EXPECT_THAT(text({.bucket_elements = 0}), HasSubstr("sdp_reduce_bucket_size"));
  EXPECT_THAT(test::error_text([] { plan_unit_shards(kCounts, {}, -1, {}); }),
              HasSubstr("sdp_param_persistence_threshold = -1"));
}

}  // namespace
}  // namespace shoal::parallel
