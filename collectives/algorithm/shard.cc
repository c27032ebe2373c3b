#include "shoal/collectives/algorithm/shard.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives::algorithm {

Range shard(std::int64_t count, int parts, int index, std::int64_t granule) {
  SHOAL_CHECK(count >= 0 && parts > 0 && index >= 0 && index < parts && granule > 0,
              "shard {} of {} of {} elements in granules of {}", index, parts, count, granule);
  const std::int64_t granules = (count + granule - 1) / granule;
  // base + (index < extra) cannot overflow, unlike granules * index / parts.
  const std::int64_t base = granules / parts, extra = granules % parts;
  const std::int64_t first = base * index + std::min<std::int64_t>(index, extra);
  const std::int64_t last = first + base + (index < extra ? 1 : 0);
  return {std::min(first * granule, count), std::min(last * granule, count)};
}

Range Slices::at(std::int64_t index) const {
  return {std::min(index * length, count), std::min((index + 1) * length, count)};
}

}  // namespace shoal::collectives::algorithm
