// What ranks of one host tell each other through shared memory: one page a rank, written by that
// rank (the doorbell and `aborted_by` aside), read by all.
//
// A rank's place is one 64-bit word (sequence << 32 | steps done): sequence counts operations
// from 1, steps those of the current one. Stored with release order after the data it vouches
// for (not always the descriptor, see ControlSlot). Differences are taken as signed, so both counts
// may wrap. A rank publishes operation t only once every rank has published t - kLead, and so has
// finished what came before that, and once all are known to have called the same up to some
// operation from there on. So ranks are at most kLead apart, and of 2 kLead slots, used by turns, a
// rank reads those of the last kLead operations of its own while nobody writes them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives::transport {

// Where a buffer lies: the rank's symmetric segment and the byte offset in it. -1: elsewhere, and
// the offset is its address in that rank's process, if others should know it (process_memory.h).
struct Location {
  std::int32_t segment = -1;
  std::int64_t offset = 0;
  bool symmetric() const { return segment >= 0; }
  friend bool operator==(const Location&, const Location&) = default;
};

struct Descriptor : Signature {
  std::uint32_t sequence = 0;
  std::uint32_t number = 0;  // as the user counts, for messages
  bool step = false;         // of another call, which this describes
  double factor = 1;         // of premultiplied_sum
  Location send, recv;
};

inline constexpr std::size_t kInlineBytes = 8192;

// What one rank writes and another polls lies in pairs of cache lines of its own: processors fetch
// the neighbour of a line that is read, and would take from its writer what nobody asked for.
inline constexpr std::size_t kApart = 128;

// By how many operations a rank may be ahead of another.
inline constexpr std::uint32_t kLead = 8;
inline constexpr std::uint32_t kSlots = 2 * kLead;

// All that the peers of a small operation need, in the one cache line that they wait for. A rank
// reads a slot once `place` is place_of(its sequence, 0), exactly: the slot's other sequences are
// kSlots away, so no count wraps here.
struct alignas(64) FirstLine {
  static constexpr std::size_t kPayloadBytes = 48;
  std::atomic<std::uint64_t> place{0};
  // Of all signatures up to this operation's: ranks that called something else once, even if
  // nobody looked then, differ in it from there on.
  std::uint64_t history = 0;
  std::byte payload[kPayloadBytes];  // of an inline exchange that fits; else it is the slot's
};
constexpr std::uint64_t hash_of(const Signature& s) {
  const std::uint64_t kind = static_cast<std::uint64_t>(s.operation) |
                             static_cast<std::uint64_t>(s.dtype) << 8 |
                             std::uint64_t{s.reduce} << 16 | std::uint64_t{s.algorithm} << 24 |
                             std::uint64_t{static_cast<std::uint32_t>(s.root)} << 32;
  std::uint64_t hash = kind * 0x9e3779b97f4a7c15;
  hash = ((hash ^ hash >> 32) + static_cast<std::uint64_t>(s.count)) * 0xbf58476d1ce4e5b9;
  hash = ((hash ^ hash >> 32) + s.counts) * 0x94d049bb133111eb;
  return hash ^ hash >> 32;
}
// One to one in either argument: what differed once stays different, and two signatures make two
// histories of one, unless their hashes are equal.
constexpr std::uint64_t history_after(std::uint64_t before, std::uint64_t hash) {
  const std::uint64_t mixed = (before ^ hash) * 0x9e3779b97f4a7c15;
  return mixed ^ mixed >> 32;
}

// The payload: counts of a _v operation, then the data of a call that travels inline.
struct alignas(kApart) ControlSlot {
  FirstLine first;
  // The descriptor is that of operation `described`, stored with release order: who repeats a small
  // call writes it after the first line, beside the wait.
  alignas(kApart) std::atomic<std::uint32_t> described{0};
  Descriptor descriptor;
  alignas(kApart) std::byte payload[kInlineBytes];
};

// For copies between processes (process_memory.h). What a rank's peers find at `address` in its
// process, if they may look there and look at the right one, is `secret`; both are written before
// anybody sees the page.
struct alignas(64) MemoryAccess {
  std::int64_t pid = 0;
  std::uint64_t address = 0, secret = 0;
  // 0: not tried yet; 1: this rank reaches all others; else 1 + the errno of the first that failed.
  std::atomic<std::int32_t> reaches{0};
  // A rank that gives up takes its buffers back: nobody begins to write into them once `closed` is
  // set, and it waits for those that have begun. Both are sequentially consistent.
  alignas(64) std::atomic<std::uint32_t> writing{0};  // this rank, into any other's memory
  std::atomic<std::uint32_t> closed{0};
};

enum class LastWords : std::uint32_t { none = 0, failed = 1, aborted = 2 };

struct alignas(kApart) RankPage {
  alignas(kApart) std::atomic<std::uint64_t> place{0};
  alignas(kApart) std::atomic<std::uint32_t> sleepers{0};  // threads of this rank in futex_wait
  // This rank can fence all ranks (doorbell.h); written before anybody sees the page.
  std::atomic<bool> can_fence{false};
  std::atomic<bool> fences{false};        // this rank passes a fence whenever it publishes
  std::array<std::uint64_t, 16> cores{};  // bit c: this rank may run on core c; likewise
  alignas(kApart) std::atomic<std::uint32_t> doorbell{0};  // rung (by anybody) to wake them
  // 0, or 1 + the rank that called abort; set by that rank in every page.
  alignas(kApart) std::atomic<std::uint32_t> aborted_by{0};
  std::atomic<std::uint32_t> has_last_words{0};  // LastWords, once they can be read
  char last_words[504];  // why this rank gave up, for those who find it gone
  MemoryAccess memory;
  ControlSlot slots[kSlots];
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
constexpr bool before(std::uint32_t a, std::uint32_t b) {  // of two sequences
  return static_cast<std::int32_t>(b - a) > 0;
}

}  // namespace shoal::collectives::transport
