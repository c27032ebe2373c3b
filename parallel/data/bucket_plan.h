// Which parameter's gradient lies where, and which bucket goes when: pure functions, so that every
// rank that calls them with the same numbers gets the same plan (decision 17).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::parallel {

struct BucketOptions {
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  // as DDP's bucket_cap_mb and SMDDP's
  // The first bucket is small, so that reduction starts early in backward (as DDP does).
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;
  // Every bucket's length divides into so many parts of whole cache lines (its end is padded).
  int parts = 1;
  // A parameter larger than a bucket is cut; false: it has a bucket of its own.
  bool cut = true;
};

// A fusion buffer: a range of the flat memory that is reduced at once.
struct GradientBucket {
  struct Entry {
    int parameter = 0;        // index in the order of registration
    std::int64_t first = 0;   // the parameter's element that this piece begins with
    std::int64_t offset = 0;  // elements from the start of the flat memory
    std::int64_t count = 0;   // elements
  };
  std::vector<Entry> entries;
  std::int64_t begin = 0, end = 0;  // elements of the flat memory, padding included
};

struct BucketPlan {
  std::vector<GradientBucket> buckets;  // consecutive in the flat memory
  std::vector<std::int64_t> offsets;    // by parameter: elements from the start of the flat memory
  std::int64_t count = 0;               // elements of it all
};

// `counts`: elements of each parameter in the order of registration, which is about the order of
// the forward; backward ends with the first, so buckets take them from the last to the first.
// No bucket passes its bytes (but for rounding up to `parts`). A parameter larger than that has as
// many buckets of equal length as it needs; the others are balanced: between two such giants, a
// bucket closes where it is nearest to an equal share. Every parameter begins at a cache line; the
// padding is never written, so it stays zero.
BucketPlan plan_buckets(std::span<const std::int64_t> counts, const BucketOptions& options);

struct BucketTiming {
  double ready_seconds = 0;  // when backward has completed it
  std::int64_t bytes = 0;
  int needed = 0;  // its place in the order in which the next forward asks for buckets
};

// The order in which buckets should be handed over: whenever one of `in_flight` places becomes
// free, of the buckets that are ready then the one that the next forward needs first (priority as
// in ByteScheduler, SOSP 2019, and P3, MLSys 2019). Places become free as on a wire that carries
// one bucket after another at `bytes_per_second`.
std::vector<int> plan_turns(std::span<const BucketTiming> buckets, double bytes_per_second,
                            int in_flight);

}  // namespace shoal::parallel
