// The order of operations on a communicator. Each has a sequence number, counted from 1. A rank's
// place is (sequence << 32 | steps done). Both may wrap, so the sign of a difference gives the
// order.
#pragma once

#include <cstdint>

namespace shoal::collectives::transport {

constexpr std::uint64_t place_of(std::uint32_t sequence, std::uint32_t steps) {
  return (std::uint64_t{sequence} << 32) | steps;
}
constexpr bool reached(std::uint64_t place, std::uint64_t target) {
  return static_cast<std::int64_t>(place - target) >= 0;
}
constexpr std::uint32_t sequence_of(std::uint64_t place) {
  return static_cast<std::uint32_t>(place >> 32);
}
// True if sequence `a` comes before `b`.
constexpr bool before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(b - a) > 0;
}

}  // namespace shoal::collectives::transport
