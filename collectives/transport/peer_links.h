// An open Unix socket to every other rank of the host. It passes shared memory (SCM_RIGHTS), and
// its end of file reports a rank's death within milliseconds.
//
// Socket names are abstract (unix(7), autobind) and travel through the Store, so no file is left
// behind. Only processes of the same user that know the group's secret are accepted.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shoal/collectives/transport/host_identity.h"
#include "shoal/collectives/transport/shared_segment.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives::transport {

enum class LinkState : std::uint8_t {
  open,
  left,  // the rank said goodbye: its Communicator was destroyed
  lost   // the connection ended without a goodbye: the process died
};

// Not thread-safe.
class PeerLinks {
 public:
  // Called for each announcement of a peer, with the arguments of announce() and the descriptor of
  // the segment's memory.
  using OnSegment =
      std::function<void(int peer, std::int64_t number, std::size_t bytes, FileDescriptor fd)>;

  // Collective. `prefix` must be new in `store` for each group. `members`: the group's ranks as
  // numbered in the job, for Errors; empty: the group is the job. Throws timeout, naming the ranks
  // that did not come; unavailable if ranks run on several hosts or network namespaces;
  // corrupt_data, naming a rank with an unreadable card.
  PeerLinks(int rank, int size, Store& store, const std::string& prefix, Deadline deadline,
            std::vector<int> members = {});
  ~PeerLinks();  // says goodbye
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // Sends a segment to all peers, in the order of the calls. Does not block: if a peer's socket is
  // full, a later drain() sends it. Closes the segment's descriptor once all peers have it. Skips
  // peers that are gone.
  void announce(std::int64_t number, std::shared_ptr<SharedSegment> segment);
  // Number of announcements that wait for space in a socket, and the peers that lack some of them.
  std::size_t backlog() const { return announcements_.size(); }
  std::vector<int> behind() const;
  // Receives announcements that have arrived, notices ended connections, and sends waiting
  // announcements. Does not block. Throws io if this process has no free file descriptor for
  // received memory.
  void drain(const OnSegment& on_segment);
  const std::vector<HostIdentity>& hosts() const { return hosts_; }  // by rank
  LinkState state(int peer) const { return states_[static_cast<std::size_t>(peer)]; }

 private:
  struct Announcement {
    std::int64_t number;
    std::shared_ptr<SharedSegment> segment;
  };
  void drain_peer(int peer, const OnSegment& on_segment);
  void send_announcements();

  int member(int peer) const {
    return members_.empty() ? peer : members_[static_cast<std::size_t>(peer)];
  }
  [[noreturn]] void throw_missing(const std::vector<int>& missing) const;
  std::vector<std::string> exchange_cards(const std::string& own, Store& store,
                                          const std::string& prefix, Deadline deadline) const;

  int rank_, size_;
  const std::vector<int> members_;
  std::vector<HostIdentity> hosts_;
  std::vector<FileDescriptor> sockets_;  // by rank; empty for this rank
  std::vector<LinkState> states_;
  std::deque<Announcement> announcements_;  // not yet received by every peer
  std::vector<std::size_t> next_;           // by rank: index of the next announcement to send
};

}  // namespace shoal::collectives::transport
