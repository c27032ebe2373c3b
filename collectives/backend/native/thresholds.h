// Where one way of the shared-memory backend becomes faster than another, all by measurement
// (docs/performance.md, "Collectives on one host").
#pragma once

#include <cstdint>

#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives::native {

// A step of a direct plan: some tens of microseconds, so that whoever drives it can hand over.
inline constexpr std::int64_t kBlockBytes = 256 << 10;
// Shards begin at whole cache lines, four of them.
inline constexpr std::int64_t kShardGranuleBytes = 256;
// From how many bytes on the kernel copies between ordinary buffers of different processes, instead
// of bounce slots: of the longest transfer between two ranks where nothing is reduced and each byte
// has one receiver, of the longest send buffer otherwise. Its copy costs more a byte than memcpy
// (it looks up every page), so it pays where it replaces two copies by one: not where one copy into
// a slot serves several receivers. Of an all_reduce it saves the waits between slices.
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
// From how many bytes on an all_reduce through bounce slots goes by shards: fewer bytes for each
// rank, but two waits more.
constexpr std::int64_t shards_from(int ranks) { return ranks == 2 ? 256 << 10 : 0; }
// What it copies at once. Between the largest and the smallest as many ranks share the slots.
inline constexpr std::int64_t kLargestLane = 128 << 10, kSmallestLane = 4 << 10;

}  // namespace shoal::collectives::native
