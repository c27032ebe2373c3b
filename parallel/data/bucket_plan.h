// Plans the position of each parameter's gradient and the order in which buckets are reduced. Pure
// functions: ranks that call them with the same numbers get the same plan (decision 17).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::parallel {

struct BucketOptions {
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  // as DDP's bucket_cap_mb and SMDDP's
  // The first bucket is small, so that reduction starts early in backward (as DDP does).
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;
  // Every bucket's length is padded to a multiple of this many parts of whole cache lines.
  int parts = 1;
  // Cut parameters larger than a bucket; false: such a parameter gets a bucket of its own.
  bool cut = true;
};

// A fusion buffer: a range of the flat memory that is reduced in one operation.
struct GradientBucket {
  struct Entry {
    int parameter = 0;        // index in the order of registration
    std::int64_t first = 0;   // first element of the parameter in this piece
    std::int64_t offset = 0;  // elements from the start of the flat memory
    std::int64_t count = 0;   // elements
  };
  std::vector<Entry> entries;
  std::int64_t begin = 0, end = 0;  // elements of the flat memory, padding included
};

struct BucketPlan {
  std::vector<GradientBucket> buckets;  // consecutive in the flat memory
  std::vector<std::int64_t> offsets;    // by parameter: elements from the start of the flat memory
  std::int64_t count = 0;               // elements of the flat memory
};

// `counts`: elements of each parameter in the order of registration, roughly the order of the
// forward. Backward ends with the first parameter, so buckets fill from the last parameter to the
// first.
//
// No bucket exceeds its byte limit, except by rounding up to `parts`. A parameter above the limit
// gets as many buckets of equal length as it needs. The others are balanced: between two such large
// parameters, a bucket closes where it is nearest to an equal share. Every parameter begins at a
// cache line. The padding is never written, so it stays zero.
BucketPlan plan_buckets(std::span<const std::int64_t> counts, const BucketOptions& options);

struct BucketTiming {
  double ready_seconds = 0;  // when backward completes the bucket
  std::int64_t bytes = 0;
  int needed = 0;  // its position in the order in which the next forward needs buckets
};

// The order in which to hand over buckets. Whenever one of `in_flight` slots becomes free, take the
// ready bucket that the next forward needs first (priority as in ByteScheduler, SOSP 2019, and P3,
// MLSys 2019). The model of time is one link that carries bucket after bucket at
// `bytes_per_second`.
std::vector<int> plan_turns(std::span<const BucketTiming> buckets, double bytes_per_second,
                            int in_flight);

}  // namespace shoal::parallel
