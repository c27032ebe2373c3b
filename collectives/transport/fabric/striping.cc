#include "shoal/collectives/transport/fabric/striping.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives::fabric {
namespace {

// Rounds up. Avoids overflow: `b` may be as large as the type permits.
std::int64_t divide_up(std::int64_t a, std::int64_t b) { return a == 0 ? 0 : (a - 1) / b + 1; }

// The length of every stripe but the last.
std::int64_t stripe_bytes(std::int64_t bytes, const StripingRule& rule) {
  SHOAL_CHECK(bytes >= 0 && rule.rails > 0 && rule.smallest > 0 && rule.largest > 0,
              "striping: {} bytes over {} rails, {} to {} bytes each", bytes, rule.rails,
              rule.smallest, rule.largest);
  const std::int64_t stripes =
      std::clamp<std::int64_t>(divide_up(bytes, rule.smallest), 1, rule.rails);
  return divide_up(divide_up(bytes, stripes), kStripeAlignment) * kStripeAlignment;
}

// The length of a stripe's segments, aligned if the limit permits.
std::int64_t segment_bytes(std::int64_t stripe, const StripingRule& rule) {
  const std::int64_t most = std::min(stripe, rule.largest);
  return most < kStripeAlignment ? most : most / kStripeAlignment * kStripeAlignment;
}

}  // namespace

std::vector<Segment> cut_into_segments(std::int64_t bytes, const StripingRule& rule,
                                       std::uint32_t first) {
  if (bytes == 0) return {};
  const std::int64_t stripe = stripe_bytes(bytes, rule), most = segment_bytes(stripe, rule);
  const auto rails = static_cast<std::uint32_t>(rule.rails);
  std::vector<Segment> segments;
  std::uint32_t rail = first % rails;
  for (std::int64_t begin = 0; begin < bytes; begin += stripe, rail = (rail + 1) % rails) {
    const std::int64_t end = std::min(bytes, begin + stripe);
    for (std::int64_t at = begin; at < end; at += most)
      segments.push_back({static_cast<int>(rail), at, std::min(most, end - at)});
  }
  return segments;
}

std::int64_t count_segments(std::int64_t bytes, const StripingRule& rule) {
  if (bytes == 0) return 0;
  const std::int64_t stripe = stripe_bytes(bytes, rule), most = segment_bytes(stripe, rule);
  const std::int64_t whole = (bytes - 1) / stripe;  // stripes before the last
  return whole * divide_up(stripe, most) + divide_up(bytes - whole * stripe, most);
}

}  // namespace shoal::collectives::fabric
