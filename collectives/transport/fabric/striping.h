// How one message is cut over several rails: pure arithmetic, the same on both sides, so that the
// receiver can count segments and need not order them. (aws-ofi-nccl's scheduler: pieces of 128 KiB
// or more, 128-byte aligned, on a first rail that rotates.)
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::collectives::fabric {

struct StripingRule {
  std::int64_t smallest = 128 << 10;             // bytes; less is not worth another rail
  std::int64_t largest = std::int64_t{1} << 30;  // bytes the providers write at once
  int rails = 1;                                 // of the sender towards the receiver
};

struct Segment {
  int rail = 0;  // 0 .. rails - 1
  std::int64_t offset = 0, bytes = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

inline constexpr std::int64_t kStripeAlignment = 128;

// Covers [0, bytes) once, in order; none for 0 bytes. `first` is the rail of the first stripe
// (modulo rails). Stripes: min(ceil(bytes / smallest), rails), each cut further at `largest`.
std::vector<Segment> cut_into_segments(std::int64_t bytes, const StripingRule& rule,
                                       std::uint32_t first);
// The length of that list, whatever `first` is.
std::int64_t count_segments(std::int64_t bytes, const StripingRule& rule);

}  // namespace shoal::collectives::fabric
