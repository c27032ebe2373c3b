// Who works on what: balanced shards of a buffer and slices that fit a slot. Pure arithmetic in
// elements; every rank computes the same.
#pragma once

#include <cstdint>

namespace shoal::collectives::algorithm {

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  friend bool operator==(const Range&, const Range&) = default;
};

// The `index`-th of `parts` consecutive ranges that cover [0, count). Borders are multiples of
// `granule` (so that two ranks never write into one cache line) and sizes differ by at most one
// granule, the last range's remainder aside; ranges are empty where there is too little to share.
Range shard(std::int64_t count, int parts, int index, std::int64_t granule);

// [0, count) cut into consecutive pieces of `length`, the last one shorter.
struct Slices {
  std::int64_t count = 0, length = 1;
  std::int64_t number() const { return (count + length - 1) / length; }
  Range at(std::int64_t index) const;
};

}  // namespace shoal::collectives::algorithm
