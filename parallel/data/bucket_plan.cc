#include "shoal/parallel/data/bucket_plan.h"

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

constexpr std::int64_t kBytes = 4;     // f32
constexpr std::int64_t kGranule = 16;  // elements in a cache line

std::int64_t padded(std::int64_t count) { return (count + kGranule - 1) / kGranule * kGranule; }

}  // namespace

BucketPlan plan_buckets(std::span<const std::int64_t> counts, const BucketOptions& options) {
  SHOAL_CHECK(options.bucket_bytes > 0 && options.first_bucket_bytes > 0,
              "gradient buckets of {} bytes, the first of {}; both must be positive",
              options.bucket_bytes, options.first_bucket_bytes);
  BucketPlan plan;
  for (std::size_t left = counts.size(); left-- > 0;) {
    const std::int64_t count = counts[left];
    SHOAL_CHECK(count >= 0, "parameter {} has {} elements", left, count);
    const std::int64_t limit =
        plan.buckets.size() <= 1 ? options.first_bucket_bytes : options.bucket_bytes;
    const bool full = !plan.buckets.empty() &&
                      (plan.count - plan.buckets.back().begin + padded(count)) * kBytes > limit;
    if (plan.buckets.empty() || full) plan.buckets.push_back({{}, plan.count, plan.count});
    GradientBucket& bucket = plan.buckets.back();
    bucket.entries.push_back({static_cast<int>(left), plan.count, count});
    plan.count += padded(count);
    bucket.end = plan.count;
  }
  return plan;
}

}  // namespace shoal::parallel
