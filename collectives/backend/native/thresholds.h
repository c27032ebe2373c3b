// Sizes at which the shared-memory backend changes its method. All are measured
// (docs/lab/2026-11-measurements.md, "Collectives on one host").
#pragma once

#include <cstdint>

#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives::native {

// Bytes of one step of a direct plan: some tens of microseconds, so that the driving thread can
// hand over.
inline constexpr std::int64_t kBlockBytes = 256 << 10;
// Shards begin at multiples of this, four cache lines.
inline constexpr std::int64_t kShardGranuleBytes = 256;
// Minimum bytes for which Linux copies between ordinary buffers of different processes, in place of
// bounce slots. If nothing is reduced and each byte has one receiver, the bytes are those of the
// longest transfer between two ranks, else those of the longest send buffer.
//
// Linux's copy is slower than memcpy, because it looks up every page. It is worthwhile if it
// replaces two copies by one, but not if one copy into a slot serves several receivers. For
// all_reduce it also saves the waits between slices.
constexpr std::int64_t single_copy_from(Operation operation, int ranks) {
  constexpr std::int64_t kOne = 64 << 10, kMiB = 1 << 20, kNever = INT64_MAX;
  switch (operation) {
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_to_all:
    case Operation::all_to_all_v:
      return kOne;
    case Operation::all_reduce:
      return 2 * kMiB * ranks;
    case Operation::broadcast:
      return ranks == 2 ? kOne : kMiB * ranks;
    default:
      return ranks == 2 ? kOne : kNever;
  }
}
// Minimum bytes for which each rank of an all_reduce through bounce slots reduces one shard: fewer
// bytes per rank, but two more waits.
constexpr std::int64_t shards_from(int ranks) { return ranks == 2 ? 256 << 10 : 0; }
// Limits for the bytes of one copy. The more ranks share the bounce slots, the fewer bytes.
inline constexpr std::int64_t kLargestLane = 128 << 10, kSmallestLane = 4 << 10;

}  // namespace shoal::collectives::native
