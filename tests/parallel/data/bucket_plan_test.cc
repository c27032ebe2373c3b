#include "shoal/parallel/data/bucket_plan.h"

#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

TEST(BucketPlan, HoldsEveryParameterOnceFromTheLastToTheFirst) {
  std::vector<std::int64_t> counts;
  for (int i = 0; i < 57; ++i) counts.push_back((i * 7919) % 3001);
  for (const std::int64_t bytes : {1, 64, 4096, 20000, 1 << 20}) {
    const BucketPlan plan = plan_buckets(counts, {bytes, std::min<std::int64_t>(bytes, 1000)});
    int expected = static_cast<int>(counts.size()) - 1;
    std::int64_t end = 0;
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      const GradientBucket& bucket = plan.buckets[b];
      ASSERT_EQ(bucket.begin, end);
      ASSERT_FALSE(bucket.entries.empty());
      for (const auto& entry : bucket.entries) {
        ASSERT_EQ(entry.parameter, expected--);
        ASSERT_EQ(entry.count, counts[static_cast<std::size_t>(entry.parameter)]);
        ASSERT_EQ(entry.offset % 16, 0);
        ASSERT_GE(entry.offset, end);
        end = entry.offset + entry.count;
        ASSERT_LE(end, bucket.end);
      }
      end = bucket.end;
      const std::int64_t limit = b == 0 ? std::min<std::int64_t>(bytes, 1000) : bytes;
      EXPECT_TRUE((bucket.end - bucket.begin) * 4 <= limit || bucket.entries.size() == 1);
    }
    EXPECT_EQ(expected, -1);
    EXPECT_EQ(end, plan.count);
  }
}

TEST(BucketPlan, StartsWithASmallBucketAndGivesAGiantOneToItself) {
  const std::vector<std::int64_t> counts{100, 10'000'000, 100, 100};
  const BucketPlan plan = plan_buckets(counts, {});
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[0].entries.size(), 2u);
  EXPECT_EQ(plan.buckets[1].entries.size(), 1u);
  EXPECT_EQ(plan.buckets[2].entries.size(), 1u);
}

TEST(BucketPlan, OfNothingIsEmptyAndNonsenseIsRefused) {
  EXPECT_TRUE(plan_buckets({}, {}).buckets.empty());
  const std::vector<std::int64_t> counts{1};
  EXPECT_THROW(plan_buckets(counts, {0, 1}), Error);
  EXPECT_THROW(plan_buckets(std::vector<std::int64_t>{-1}, {}), Error);
}

}  // namespace
}  // namespace shoal::parallel
