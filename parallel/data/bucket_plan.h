// Which parameter's gradient lies where: a pure function, the same on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::parallel {

struct BucketOptions {
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  // as DDP's bucket_cap_mb and SMDDP's
  // The first bucket is small, so that reduction starts early in backward (as DDP does).
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;
};

struct GradientBucket {
  struct Entry {
    int parameter = 0;        // index in the order of registration
    std::int64_t offset = 0;  // elements from the start of the flat memory
    std::int64_t count = 0;   // elements
  };
  std::vector<Entry> entries;
  std::int64_t begin = 0, end = 0;  // elements of the flat memory, padding included
};

struct BucketPlan {
  std::vector<GradientBucket> buckets;  // consecutive in the flat memory
  std::int64_t count = 0;               // elements of it all
};

// `counts`: elements of each parameter in the order of registration, which is about the order of
// the forward; backward ends with the first, so buckets take them from the last to the first.
// A bucket closes before it would pass its bytes; a parameter larger than that has one to itself.
// Every entry begins at a cache line; the padding is never written, so it stays zero.
BucketPlan plan_buckets(std::span<const std::int64_t> counts, const BucketOptions& options);

}  // namespace shoal::parallel
