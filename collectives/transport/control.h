// What ranks of one host tell each other through shared memory: one page a rank, written by that
// rank (the doorbell and `aborted_by` aside), read by all.
//
// A rank's place is one 64-bit word (sequence << 32 | steps done): sequence counts operations
// from 1, steps those of the current one. Stored with release order after the data it vouches
// for. Differences are taken as signed, so both counts may wrap. An operation starts only when
// all ranks have published its descriptor, so nobody is ever more than one operation ahead, and
// two descriptor slots, used by turns, are enough.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives {

// Where a buffer lies: the rank's symmetric segment and the byte offset in it. -1: elsewhere.
struct Location {
  std::int32_t segment = -1;
  std::int64_t offset = 0;
  bool symmetric() const { return segment >= 0; }
};

struct Descriptor : Signature {
  std::uint32_t sequence = 0;
  double factor = 1;  // of premultiplied_sum
  Location send, recv;
};

inline constexpr std::size_t kInlineBytes = 8192;

// The payload: counts of a _v operation, then the data of a call that travels inline.
struct alignas(64) ControlSlot {
  Descriptor descriptor;
  alignas(64) std::byte payload[kInlineBytes];
};

struct alignas(64) RankPage {
  alignas(64) std::atomic<std::uint64_t> place{0};
  alignas(64) std::atomic<std::uint32_t> sleepers{0};  // threads of this rank in futex_wait
  alignas(64) std::atomic<std::uint32_t> doorbell{0};  // rung (by anybody) to wake them
  // 0, or 1 + the rank that called abort; set by that rank in every page.
  alignas(64) std::atomic<std::uint32_t> aborted_by{0};
  std::atomic<std::uint32_t> has_last_words{0};
  char last_words[504];  // why this rank gave up, for those who find it gone
  ControlSlot slots[2];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::uint64_t place_of(std::uint32_t sequence, std::uint32_t steps) {
  return (std::uint64_t{sequence} << 32) | steps;
}
constexpr bool reached(std::uint64_t place, std::uint64_t target) {
  return static_cast<std::int64_t>(place - target) >= 0;
}
constexpr std::uint32_t sequence_of(std::uint64_t place) {
  return static_cast<std::uint32_t>(place >> 32);
}

}  // namespace shoal::collectives
