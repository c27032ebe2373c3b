// Cuts one message into segments for several rails. Pure arithmetic, so both ends agree on the
// number of segments, and the receiver only counts them. (Like aws-ofi-nccl's scheduler: pieces of
// 128 KiB or more, 128-byte aligned, starting on a rotating rail.)
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::collectives::fabric {

struct StripingRule {
  std::int64_t smallest = 128 << 10;             // bytes; a smaller piece is not worth another rail
  std::int64_t largest = std::int64_t{1} << 30;  // maximum bytes of one provider write
  int rails = 1;                                 // from the sender to the receiver
};

struct Segment {
  int rail = 0;  // 0 .. rails - 1
  std::int64_t offset = 0, bytes = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

inline constexpr std::int64_t kStripeAlignment = 128;

// Segments that cover [0, bytes) once, in order; none for 0 bytes. The message has
// min(ceil(bytes / smallest), rails) stripes, each cut further at `largest`. `first` is the rail of
// the first stripe (modulo rails).
std::vector<Segment> cut_into_segments(std::int64_t bytes, const StripingRule& rule,
                                       std::uint32_t first);
// The number of these segments, which does not depend on `first`.
std::int64_t count_segments(std::int64_t bytes, const StripingRule& rule);

}  // namespace shoal::collectives::fabric
