// Several small all_reduces of a group as one: packed into symmetric memory, reduced by one
// exchange, unpacked.
#pragma once

#include <vector>

#include "shoal/collectives/backend/arguments.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives::native {

class Fusion {
 public:
  // Calls of this size and below are worth packing; larger ones fill the wires by themselves.
  static constexpr std::int64_t kMostBytes = 16 << 10;

  // `parts`: all_reduces of one dtype and reduction, at least one element in all.
  Fusion(std::vector<Call> parts, MemoryResource& memory);

  // The one call: its counts are those of the parts, so that ranks which coalesced something else
  // are told apart.
  Call call() const;
  void pack();    // before the exchange begins
  void unpack();  // after it

 private:
  std::vector<Call> parts_;
  Buffer buffer_;
};

// The calls of a group, those that may be fused moved together; decided alike on all ranks, since
// only what they must agree on is looked at. Each inner list has one call, or several to fuse.
std::vector<std::vector<Call>> fusible(std::vector<Call> calls);

}  // namespace shoal::collectives::native
