// Fuses several small all_reduces of a group: packs them into symmetric memory, reduces them in one
// exchange, and unpacks the results.
#pragma once

#include <vector>

#include "shoal/collectives/call.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives::native {

class Fusion {
 public:
  // Calls of at most this size are worth packing; larger ones are efficient by themselves.
  static constexpr std::int64_t kMostBytes = 16 << 10;

  // `parts`: all_reduces of one dtype and reduction, with at least one element in total.
  Fusion(std::vector<Call> parts, MemoryResource& memory);

  // The fused call. Its signature covers the parts' counts, so ranks that fused different calls are
  // detected.
  Call call() const;
  void pack();    // before the exchange begins
  void unpack();  // after it

 private:
  std::vector<Call> parts_;
  Buffer buffer_;
};

// Groups the calls that may be fused. Each inner list holds one call, or several to fuse. The
// result is the same on all ranks: it depends only on values that they must agree on.
std::vector<std::vector<Call>> fusible(std::vector<Call> calls);

}  // namespace shoal::collectives::native
