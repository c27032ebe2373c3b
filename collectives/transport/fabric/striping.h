// Cuts one message over several rails: pure arithmetic, the same on both sides, so that the
// receiver counts segments instead of ordering them. (Like aws-ofi-nccl's scheduler: pieces of 128
// KiB or more, 128-byte aligned, starting on a rotating rail.)
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::collectives::fabric {

struct StripingRule {
  std::int64_t smallest = 128 << 10;             // bytes; less is not worth another rail
  std::int64_t largest = std::int64_t{1} << 30;  // maximum bytes of one provider write
  int rails = 1;                                 // from the sender to the receiver
};

struct Segment {
  int rail = 0;  // 0 .. rails - 1
  std::int64_t offset = 0, bytes = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

inline constexpr std::int64_t kStripeAlignment = 128;

// Covers [0, bytes) once, in order; empty for 0 bytes. `first` is the rail of the first stripe
// (modulo rails). Stripes: min(ceil(bytes / smallest), rails), each cut further at `largest`.
std::vector<Segment> cut_into_segments(std::int64_t bytes, const StripingRule& rule,
                                       std::uint32_t first);
// The length of that list, which does not depend on `first`.
std::int64_t count_segments(std::int64_t bytes, const StripingRule& rule);

}  // namespace shoal::collectives::fabric
