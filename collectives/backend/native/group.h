// The ranks of one host as this rank sees them: their control pages, bounce slots and symmetric
// memory, and who is still alive.
//
// Thread-safe; the lock inside is held for bookkeeping only, never while waiting.
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

// Bytes of bounce slots a rank offers; plans cut it into as many slots as they need.
inline constexpr std::int64_t kBounceBytes = std::int64_t{2} << 20;

class Group {
 public:
  // `members`: the ranks of the job, for messages; empty: the group is the job. `memory`: a group
  // of the same ranks in the same order whose symmetric memory is this one's too; or null.
  Group(int rank, int size, Store& store, const std::string& prefix, Deadline deadline,
        std::vector<int> members = {}, std::shared_ptr<Group> memory = nullptr);
  ~Group();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int member(int peer) const {
    return members_.empty() ? peer : members_[static_cast<std::size_t>(peer)];
  }

  // Size of the last-level cache, which all ranks share.
  std::int64_t last_cache_bytes() const { return last_cache_bytes_; }
  // Number of cores on which any rank may run, within the ranks' CPU quotas. (mpirun may bind each
  // rank to different cores.)
  int cores() const { return cores_; }

  transport::RankPage& page(int peer) const { return *pages_[static_cast<std::size_t>(peer)]; }
  transport::RankPage& own_page() const { return page(rank_); }
  std::byte* bounce(int peer) const;
  std::byte* mailboxes(int peer) const;  // of its messages to each rank

  transport::ControlSlot& slot(int peer, std::uint32_t sequence) const {
    return page(peer).slots[sequence % transport::kSlots];
  }

  // This rank's place becomes `place`; wakes sleeping ranks. Everything written before is visible
  // to a rank that sees the place.
  void publish(std::uint64_t place) {
    if (static_cast<std::uint32_t>(place) == 0)
      slot(rank_, transport::sequence_of(place))
          .first.place.store(place, std::memory_order_release);
    // Together with Backoff::pause: either the sleeper sees this place, or we see the sleeper.
    transport::RankPage& own = own_page();
    if (sleepers_fence_ && !own.fences.load(std::memory_order_relaxed))
      own.place.store(place, std::memory_order_release);
    else
      own.place.exchange(place);
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_ && page(peer).sleepers.load() != 0) transport::wake_always(page(peer));
  }
  // Whether that rank, or all others, have filled their slots for operation `sequence`: reads their
  // first lines.
  bool published(int peer, std::uint32_t sequence) const {
    return slot(peer, sequence).first.place.load(std::memory_order_acquire) ==
           transport::place_of(sequence, 0);
  }
  bool all_published(std::uint32_t sequence) const {
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_ && !published(peer, sequence)) return false;
    return true;
  }
  // Whether a rank must fence all ranks before it sleeps (doorbell.h).
  bool sleepers_fence() const;
  // From now on this rank fences when it publishes: where sleeping is the rule, that costs less
  // than to interrupt the other cores for each sleep.
  void fence_at_publishing();
  // The first rank, this one aside, that has not reached `target`; -1 when all have.
  int first_behind(std::uint64_t target) const;

  // Symmetric memory: a new segment that all ranks map. Its number is its place in the order of
  // this rank's segments. Waits only while many are not mapped yet, then throws timeout.
  std::shared_ptr<transport::SharedSegment> add_segment(std::size_t bytes, Deadline deadline);
  // Where [pointer, pointer + bytes) lies in this rank's segments, if it does.
  transport::Location locate(const void* pointer, std::int64_t bytes) const;
  // The peer's buffer as mapped here; null while the announcement of its segment is on its way.
  std::byte* resolve(int peer, const transport::Location& location);

  // Copies from and to the ordinary memory of peers. The same on all ranks: whether every rank
  // reaches every other so, as tried when the group formed. The two throw peer_lost where the peer
  // is gone or has given up, io where the kernel refuses; addresses are those of its process.
  bool single_copy() const { return single_copy_; }
  void read_memory(int peer, std::uint64_t from, void* to, std::int64_t bytes);
  void write_memory(int peer, std::uint64_t to, const void* from, std::int64_t bytes);
  // From now on no peer writes into this process: its buffers go back to the caller. Waits for
  // writes that have begun, at most deadlines::kMemoryClosing (a peer may be stopped in the midst
  // of one).
  void close_memory();

  void poll_links();
  transport::LinkState link_state(int peer) const;
  void close_links();

  // Why this rank gives up, for those who find it gone.
  void say_last_words(std::string_view text,
                      transport::LastWords why = transport::LastWords::failed);
  // It said so, and will not go on: not that a rank aborted, which aborted_by() tells.
  bool has_failed(int peer) const;
  std::string last_words(int peer) const;
  // Makes every rank's waits end.
  void broadcast_abort(std::string_view reason);
  std::optional<int> aborted_by() const;

 private:
  std::vector<int> named(std::vector<int> peers) const;  // member() of each
  std::size_t control_bytes() const;
  void introduce_memory();  // before a peer sees the own page
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
  bool sleepers_fence_ = false;  // unless all others fence when they publish
  int cores_ = 1;
  std::uint64_t secret_ = 0;  // what peers look for
  bool single_copy_ = false;
  mutable std::mutex mutex_;
  std::unique_ptr<transport::PeerLinks> links_;                     // null once closed
  std::vector<std::shared_ptr<transport::SharedSegment>> control_;  // by rank
  std::vector<transport::RankPage*> pages_;                         // in them
  std::vector<std::vector<std::shared_ptr<transport::SharedSegment>>> segments_;  // by rank, number
  const std::shared_ptr<Group> memory_;
};

}  // namespace shoal::collectives::native
