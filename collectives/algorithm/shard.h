// Balanced shards of a buffer, and slices that fit a slot. Pure arithmetic in elements, the same on
// every rank.
#pragma once

#include <cstdint>

namespace shoal::collectives::algorithm {

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  friend bool operator==(const Range&, const Range&) = default;
};

// The `index`-th of `parts` consecutive ranges that cover [0, count). Bounds are multiples of
// `granule`, so two ranks never write into one cache line. Sizes differ by at most one granule,
// except for the last range's remainder. Ranges are empty if there are too few granules.
Range shard(std::int64_t count, int parts, int index, std::int64_t granule);

// [0, count) cut into consecutive pieces of `length`; the last may be shorter.
struct Slices {
  std::int64_t count = 0, length = 1;
  std::int64_t number() const { return (count + length - 1) / length; }
  Range at(std::int64_t index) const;
};

}  // namespace shoal::collectives::algorithm
