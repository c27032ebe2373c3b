#include "shoal/parallel/data/bucket_plan.h"

#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

TEST(BucketPlan, HoldsEveryElementOnceFromTheLastParameterToTheFirst) {
  std::vector<std::int64_t> counts;
  for (int i = 0; i < 57; ++i) counts.push_back((i * 7919) % 3001);
  for (const std::int64_t bytes : {1, 64, 4096, 20000, 1 << 20}) {
    const BucketPlan plan = plan_buckets(counts, {bytes, std::min<std::int64_t>(bytes, 1000)});
    int parameter = static_cast<int>(counts.size()) - 1;
    std::int64_t end = 0, held = 0;  // held: elements of `parameter` so far
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      const GradientBucket& bucket = plan.buckets[b];
      ASSERT_EQ(bucket.begin, end);
      ASSERT_FALSE(bucket.entries.empty());
      for (const auto& entry : bucket.entries) {
        const auto index = static_cast<std::size_t>(parameter);
        ASSERT_EQ(entry.parameter, parameter);
        ASSERT_EQ(entry.first, held);
        ASSERT_EQ(entry.offset, plan.offsets[index] + held);
        ASSERT_EQ(entry.offset % 16, 0);
        ASSERT_GE(entry.offset, end);
        end = entry.offset + entry.count;
        ASSERT_LE(end, bucket.end);
        held += entry.count;
        ASSERT_LE(held, counts[index]);
        if (held == counts[index]) --parameter, held = 0;
      }
      end = bucket.end;
      // A bucket has at least one cache line.
      EXPECT_LE((bucket.end - bucket.begin) * 4, std::max<std::int64_t>(bytes, 64));
    }
    EXPECT_EQ(parameter, -1);
    EXPECT_EQ(end, plan.count);
  }
}

TEST(BucketPlan, StartsWithASmallBucketAndCutsAGiantIntoEqualOnesOfItsOwn) {
  const std::vector<std::int64_t> counts{100, 20'000'001, 100, 100};
  const BucketPlan plan = plan_buckets(counts, {});
  ASSERT_EQ(plan.buckets.size(), 6u);  // 76 MiB in four
  EXPECT_EQ(plan.buckets[0].entries.size(), 2u);
  for (std::size_t b = 1; b < 5; ++b) {
    ASSERT_EQ(plan.buckets[b].entries.size(), 1u);
    EXPECT_NEAR(static_cast<double>(plan.buckets[b].entries[0].count), 5'000'000, 4 * 16);
  }
  EXPECT_EQ(plan.buckets[5].entries.size(), 1u);
}

TEST(BucketPlan, BalancesBucketsBetweenGiants) {
  // 30 parameters of 1024 elements have 4 KiB each. 120 KiB in buckets of at most 50 KiB are
  // three buckets of 40 KiB.
  const std::vector<std::int64_t> counts(30, 1024);
  const BucketPlan plan = plan_buckets(counts, {50 << 10, 1});
  ASSERT_EQ(plan.buckets.size(), 3u);
  for (const GradientBucket& bucket : plan.buckets)
    EXPECT_EQ((bucket.end - bucket.begin) * 4, 40 << 10);
}

TEST(BucketPlan, NoParametersGiveNoBucketsAndNonsenseIsRefused) {
  EXPECT_TRUE(plan_buckets({}, {}).buckets.empty());
  const std::vector<std::int64_t> counts{1};
  EXPECT_THROW(plan_buckets(counts, {0, 1}), Error);
  EXPECT_THROW(plan_buckets(std::vector<std::int64_t>{-1}, {}), Error);
}

// Sending a bucket takes one second.
std::vector<int> turns(std::vector<BucketTiming> buckets, int in_flight) {
  for (BucketTiming& bucket : buckets) bucket.bytes = 100;
  return plan_turns(buckets, 100, in_flight);
}

TEST(PlanTurns, FollowReadinessIfNoTransferWaits) {
  EXPECT_EQ(turns({{10, 0, 2}, {20, 0, 1}, {30, 0, 0}}, 2), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(turns({{30, 0, 0}, {20, 0, 1}, {10, 0, 2}}, 1), (std::vector<int>{2, 1, 0}));
}

TEST(PlanTurns, FollowNeedIfSeveralWait) {
  // All are ready before the first transfer ends. With one bucket in flight, only that one
  // goes before its turn.
  const std::vector<BucketTiming> burst{{0.0, 0, 3}, {0.1, 0, 2}, {0.2, 0, 1}, {0.3, 0, 0}};
  EXPECT_EQ(turns(burst, 1), (std::vector<int>{0, 3, 2, 1}));
  EXPECT_EQ(turns(burst, 2), (std::vector<int>{0, 1, 3, 2}));
  EXPECT_EQ(turns(burst, 9), (std::vector<int>{0, 1, 2, 3}));
  // A bucket with an earlier need goes before the waiting ones.
  EXPECT_EQ(turns({{0, 0, 3}, {0, 0, 2}, {0, 0, 1}, {1.5, 0, 0}}, 1),
            (std::vector<int>{2, 1, 3, 0}));
}

TEST(PlanTurns, HoldEachBucketOnceAndRefuseNonsense) {
  for (int count = 0; count < 40; ++count)
    for (const int in_flight : {1, 3, 50}) {
      std::vector<BucketTiming> buckets;
      for (int i = 0; i < count; ++i)
        buckets.push_back({(i * 37 % 11) * 0.3, 0, i * 17 % (count + 1)});
      const std::vector<int> order = turns(buckets, in_flight);
      EXPECT_EQ(order.size(), buckets.size());
      EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), buckets.size());
    }
  EXPECT_THROW(plan_turns({}, 0, 1), Error);
  EXPECT_THROW(plan_turns({}, 1, 0), Error);
}

}  // namespace
}  // namespace shoal::parallel
