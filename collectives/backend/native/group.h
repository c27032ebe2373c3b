// The ranks of one host as this rank sees them: their control pages, bounce slots, symmetric memory
// and liveness.
//
// Thread-safe. The internal lock guards bookkeeping only and is never held while waiting.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/collectives/transport/control.h"
#include "shoal/collectives/transport/doorbell.h"
#include "shoal/collectives/transport/peer_links.h"
#include "shoal/collectives/transport/shared_segment.h"

namespace shoal::collectives::native {

// Bytes of each rank's bounce area. A plan cuts it into as many slots as it needs.
inline constexpr std::int64_t kBounceBytes = std::int64_t{2} << 20;
// Half of it: what steps fill in turn. A slice this long has moved from its writer's L2 cache to
// the shared cache when another rank reads it. Between two cores of a Zen 4, slices of 256 KiB took
// twice as long, and so did stores past the caches.
inline constexpr std::int64_t kSlotBytes = kBounceBytes / 2;

// A rank as an index.
inline std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

class Group {
 public:
  // Collective. `members`: this group's ranks as numbered in the job, for Errors; empty: the group
  // is the job. `memory`: a group of the same ranks in the same order whose symmetric memory this
  // group uses as well, or null. Throws timeout or peer_lost, naming the ranks.
  Group(int rank, int size, Store& store, const std::string& prefix, Deadline deadline,
        std::vector<int> members = {}, std::shared_ptr<Group> memory = nullptr);
  ~Group();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int member(int peer) const {
    return members_.empty() ? peer : members_[static_cast<std::size_t>(peer)];
  }

  // Bytes of the last-level cache, which the ranks share.
  std::int64_t last_cache_bytes() const { return last_cache_bytes_; }
  // Number of cores that the ranks may use together, within their CPU quotas. (mpirun may bind each
  // rank to different cores.)
  int cores() const { return cores_; }

  transport::RankPage& page(int peer) const { return *pages_[static_cast<std::size_t>(peer)]; }
  transport::RankPage& own_page() const { return page(rank_); }
  std::byte* bounce(int peer) const;
  std::byte* mailboxes(int peer) const;  // rings for the peer's messages to each rank

  transport::ControlSlot& slot(int peer, std::uint32_t sequence) const {
    return page(peer).slots[sequence % transport::kSlots];
  }

  // Sets this rank's place and wakes sleeping ranks. A rank that sees the place also sees every
  // earlier write of this rank.
  void publish(std::uint64_t place) {
    if (static_cast<std::uint32_t>(place) == 0)
      slot(rank_, transport::sequence_of(place))
          .first.place.store(place, std::memory_order_release);
    // The ordered store below, or the fence in Backoff::pause, ensures that the sleeper sees this
    // place or this rank sees the sleeper.
    transport::RankPage& own = own_page();
    if (sleepers_fence_ && !own.fences.load(std::memory_order_relaxed))
      own.place.store(place, std::memory_order_release);
    else
      own.place.exchange(place);
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_ && page(peer).sleepers.load() != 0) transport::wake_always(page(peer));
  }
  // Whether the peer, or every other rank, has filled its slot for operation `sequence`. Reads only
  // FirstLine, one cache line per rank.
  bool published(int peer, std::uint32_t sequence) const {
    return slot(peer, sequence).first.place.load(std::memory_order_acquire) ==
           transport::place_of(sequence, 0);
  }
  bool all_published(std::uint32_t sequence) const {
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_ && !published(peer, sequence)) return false;
    return true;
  }
  // Whether a thread of this rank must fence all ranks before it sleeps (doorbell.h).
  bool sleepers_fence() const;
  // From now on this rank fences whenever it publishes. If ranks sleep often, that costs less than
  // interrupting the other cores before each sleep.
  void fence_at_publishing();
  // The first other rank that has not reached `target`; -1: all have.
  int first_behind(std::uint64_t target) const;

  // Creates a segment of symmetric memory, which all ranks map. This rank's segments are numbered
  // in order of creation. Blocks while too many segments are not mapped yet; throws timeout.
  std::shared_ptr<transport::SharedSegment> add_segment(std::size_t bytes, Deadline deadline);
  // Location of [pointer, pointer + bytes) in this rank's segments; segment -1 if outside them.
  transport::Location locate(const void* pointer, std::int64_t bytes) const;
  // This process's mapping of the peer's buffer. Null until the segment's announcement arrives.
  std::byte* resolve(int peer, const transport::Location& location);

  // Copy from and to a peer's ordinary memory. single_copy(): true if every rank can do so with
  // every other rank, as tried when the group formed; equal on all ranks. `from` and `to` are
  // addresses in the peer's process. Throw peer_lost if the peer is gone or gave up, io if the
  // kernel refuses.
  bool single_copy() const { return single_copy_; }
  void read_memory(int peer, std::uint64_t from, void* to, std::int64_t bytes);
  void write_memory(int peer, std::uint64_t to, const void* from, std::int64_t bytes);
  // Stops peers from writing into this process, so that the caller may free its buffers. Waits for
  // writes in progress, at most deadlines::kMemoryClosing: a peer may be stopped during one.
  void close_memory();

  void poll_links();
  transport::LinkState link_state(int peer) const;
  void close_links();

  // Publishes why this rank gives up, for peers that find this rank gone. Only the first call
  // counts.
  void say_last_words(std::string_view text,
                      transport::LastWords why = transport::LastWords::failed);
  // Whether the peer gave up after a failure. An abort does not count (see aborted_by()).
  bool has_failed(int peer) const;
  std::string last_words(int peer) const;
  // Ends every rank's waits.
  void broadcast_abort(std::string_view reason);
  std::optional<int> aborted_by() const;

 private:
  std::vector<int> named(std::vector<int> peers) const;  // member() of each
  std::size_t control_bytes() const;
  void introduce_memory();  // before a peer sees this rank's page
  void agree_on_memory(Deadline deadline);
  int try_memory() const;  // 0, or the first errno
  std::string why_not_single_copy(int peer, int problem) const;
  [[noreturn]] void throw_unreachable(int peer, int problem);
  void accept_segment(int peer, std::int64_t number, std::size_t bytes,
                      transport::FileDescriptor fd);
  void poll_links_locked();

  int rank_, size_;
  const std::vector<int> members_;
  std::int64_t last_cache_bytes_;
  bool sleepers_fence_ = false;  // except for ranks that fence when they publish
  int cores_ = 1;
  std::uint64_t secret_ = 0;  // MemoryAccess::secret: peers read it at its address
  bool single_copy_ = false;
  mutable std::mutex mutex_;
  std::unique_ptr<transport::PeerLinks> links_;                     // null once closed
  std::vector<std::shared_ptr<transport::SharedSegment>> control_;  // by rank
  std::vector<transport::RankPage*> pages_;                         // by rank; in control_
  std::vector<std::vector<std::shared_ptr<transport::SharedSegment>>> segments_;  // by rank, number
  const std::shared_ptr<Group> memory_;
};

}  // namespace shoal::collectives::native
