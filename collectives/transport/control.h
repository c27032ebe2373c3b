// The control pages of the ranks of one host: one page per rank in shared memory. Its rank writes
// it, except `doorbell` and `aborted_by`; all ranks read it.
//
// A rank's place is one 64-bit word (sequence << 32 | steps done). `sequence` counts operations
// from 1, `steps` counts the finished steps of the current one. The word is stored with release
// order after the data that it announces (some descriptors come later, see ControlSlot). Places are
// compared by their signed difference, so both counts may wrap.
//
// A rank publishes operation t only under two conditions. First, every rank has published t -
// kLead, and so has finished all earlier operations. Second, all ranks are known to have made the
// same calls up to t - kLead at least.
//
// Ranks are therefore at most kLead operations apart. Operations use the 2 kLead slots in rotation.
// So a rank can read all ranks' slots of its own last kLead operations: no rank rewrites them yet.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "shoal/collectives/transport/operation.h"
#include "shoal/collectives/transport/sequence.h"

namespace shoal::collectives::transport {

// Location of a buffer: the number of a symmetric segment of its rank, and the byte offset in it.
// Segment -1 means other memory; the offset is then the address in that rank's process, if peers
// need it (process_memory.h).
struct Location {
  std::int32_t segment = -1;
  std::int64_t offset = 0;
  bool symmetric() const { return segment >= 0; }
  friend bool operator==(const Location&, const Location&) = default;
};

struct Descriptor : Signature {
  std::uint32_t sequence = 0;
  std::uint32_t number = 0;  // the call's number as the user counts, for error texts
  bool step = false;         // one step of the call that the signature describes
  double factor = 1;         // for premultiplied_sum
  Location send, recv;
};

inline constexpr std::size_t kInlineBytes = 8192;

// Alignment of data that one rank writes and another polls: a pair of cache lines. Processors also
// prefetch the neighbour of a line that is read, which would take that line from its writer.
inline constexpr std::size_t kApart = 128;

// How many operations a rank may be ahead of another.
inline constexpr std::uint32_t kLead = 8;
inline constexpr std::uint32_t kSlots = 2 * kLead;

// Everything that peers need for a small operation, in the one cache line that they poll. A rank
// reads a slot once `place` equals place_of(sequence, 0). The slot's other sequences are multiples
// of kSlots away, so wrapping is harmless.
struct alignas(64) FirstLine {
  static constexpr std::size_t kPayloadBytes = 48;
  std::atomic<std::uint64_t> place{0};
  // Hash of all signatures up to this operation's. Once two ranks have made different calls, their
  // histories stay different, even if no rank compared them at the time.
  std::uint64_t history = 0;
  std::byte payload[kPayloadBytes];  // the data of an inline exchange if it fits, else unused
};
constexpr std::uint64_t hash_of(const Signature& s) {
  const std::uint64_t kind =
      static_cast<std::uint64_t>(s.operation) | static_cast<std::uint64_t>(s.dtype) << 8 |
      static_cast<std::uint64_t>(s.reduce) << 16 | std::uint64_t{s.algorithm} << 24 |
      std::uint64_t{static_cast<std::uint32_t>(s.root)} << 32;
  std::uint64_t hash = kind * 0x9e3779b97f4a7c15;
  hash = ((hash ^ hash >> 32) + static_cast<std::uint64_t>(s.count)) * 0xbf58476d1ce4e5b9;
  hash = ((hash ^ hash >> 32) + s.counts) * 0x94d049bb133111eb;
  return hash ^ hash >> 32;
}
// Injective in either argument, so histories that differ stay different under equal calls.
// Different signatures after the same history give different histories, unless their hashes
// collide.
constexpr std::uint64_t history_after(std::uint64_t before, std::uint64_t hash) {
  const std::uint64_t mixed = (before ^ hash) * 0x9e3779b97f4a7c15;
  return mixed ^ mixed >> 32;
}

// `payload` holds the counts of a _v operation, then the data of a call that travels inline.
struct alignas(kApart) ControlSlot {
  FirstLine first;
  // `descriptor` belongs to operation `described`, which is stored with release order. For a
  // repeated small call it is written after the first line, while the rank waits for its peers.
  alignas(kApart) std::atomic<std::uint32_t> described{0};
  Descriptor descriptor;
  alignas(kApart) std::byte payload[kInlineBytes];
};

// For copies between processes (process_memory.h). A peer that finds `secret` at `address` of
// process `pid` has found the right process and may read its memory. All three are written before
// any peer sees the page.
struct alignas(64) MemoryAccess {
  std::int64_t pid = 0;
  std::uint64_t address = 0, secret = 0;
  // 0: not tried yet; 1: this rank can copy from and to all others; else 1 + errno of the first
  // failure.
  std::atomic<std::int32_t> reaches{0};
  // A rank that gives up sets `closed`, so that no peer begins to write into its buffers, and then
  // waits until no peer is `writing`. Accesses to both are sequentially consistent.
  alignas(64) std::atomic<std::uint32_t> writing{0};  // this rank is writing into another's memory
  std::atomic<std::uint32_t> closed{0};
};

enum class LastWords : std::uint32_t { none = 0, failed = 1, aborted = 2 };

struct alignas(kApart) RankPage {
  alignas(kApart) std::atomic<std::uint64_t> place{0};
  alignas(kApart) std::atomic<std::uint32_t> sleepers{0};  // threads of this rank in futex_wait
  // Whether this rank can fence all ranks (doorbell.h); written before any peer sees the page.
  std::atomic<bool> can_fence{false};
  std::atomic<bool> fences{false};  // this rank executes a fence whenever it publishes
  // Bit c of `cores`: this rank may run on core c. `quota_cores`: CPU quota of its control group;
  // 0: none. `quota_group`: equal on ranks of one control group. Written before any peer sees the
  // page.
  std::array<std::uint64_t, 16> cores{};
  double quota_cores = 0;
  std::uint64_t quota_group = 0;
  alignas(kApart) std::atomic<std::uint32_t> doorbell{0};  // any rank rings it to wake sleepers
  // 0, or 1 + the rank that called abort; that rank sets it in every page.
  alignas(kApart) std::atomic<std::uint32_t> aborted_by{0};
  std::atomic<std::uint32_t> has_last_words{0};  // a LastWords, set once `last_words` is readable
  char last_words[504];  // why this rank gave up, for ranks that find it gone
  MemoryAccess memory;
  ControlSlot slots[kSlots];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace shoal::collectives::transport
