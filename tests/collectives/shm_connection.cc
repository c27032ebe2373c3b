#include "shm_connection.h"

#include <new>
#include <thread>
#include <vector>

#include "shoal/collectives/transport/peer_links.h"
#include "shoal/collectives/transport/shared_segment.h"
#include "shoal/collectives/transport/shm_endpoint.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::transport {
namespace {

constexpr std::size_t kPageBytes = (sizeof(RankPage) + 4095) / 4096 * 4096;

class ConnectedHost final : public ShmHost {
 public:
  ConnectedHost(int rank, int size, Store& store, const std::string& prefix, Deadline deadline)
      : rank_(rank),
        size_(size),
        links_(rank, size, store, prefix, deadline),
        segments_(static_cast<std::size_t>(size)) {
    const std::size_t bytes = kPageBytes + shm_mailbox_bytes(size);
    own() = SharedSegment::create("shoal-mailboxes", bytes);
    new (own()->data()) RankPage;
    links_.announce(0, own());
    for (int peer = 0; peer < size; ++peer) {
      while (!segments_[static_cast<std::size_t>(peer)]) {
        poll();
        if (segments_[static_cast<std::size_t>(peer)]) break;
        const bool gone = links_.state(peer) != LinkState::open;
        if (gone || deadline.passed())
          throw Error(gone ? ErrorCode::peer_lost : ErrorCode::timeout,
                      fmt::format("rank {} {}", peer,
                                  gone ? "left while the endpoint was made"
                                       : "did not share its mailboxes in time"))
              .at_rank(rank)
              .with_peer(peer);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  RankPage& page(int peer) const override {
    return *std::launder(
        reinterpret_cast<RankPage*>(segments_[static_cast<std::size_t>(peer)]->data()));
  }
  std::byte* mailboxes(int peer) const override {
    return segments_[static_cast<std::size_t>(peer)]->data() + kPageBytes;
  }
  Location locate(const void*, std::int64_t) const override { return {}; }
  std::byte* resolve(int, const Location&) const override { return nullptr; }
  std::string fate(int peer) const override {
    poll();
    const LinkState state = links_.state(peer);
    return state == LinkState::open ? "" : state == LinkState::lost ? "died" : "left the group";
  }

 private:
  std::shared_ptr<SharedSegment>& own() { return segments_[static_cast<std::size_t>(rank_)]; }
  void poll() const {
    links_.drain([this](int peer, std::int64_t, std::size_t bytes, FileDescriptor fd) {
      auto segment = SharedSegment::map(std::move(fd), bytes);
      if (bytes != own_bytes())
        throw Error(
            ErrorCode::mismatch,
            fmt::format("rank {} has mailboxes of {} bytes, not {}", peer, bytes, own_bytes()),
            "run the same version of Shoal on every rank");
      segments_[static_cast<std::size_t>(peer)] = std::move(segment);
    });
  }
  std::size_t own_bytes() const { return kPageBytes + shm_mailbox_bytes(size_); }

  int rank_, size_;
  mutable PeerLinks links_;
  mutable std::vector<std::shared_ptr<SharedSegment>> segments_;
};

}  // namespace

std::unique_ptr<Endpoint> connect_shm_endpoint(int rank, int size, Store& store,
                                               const std::string& prefix, Deadline deadline) {
  return make_shm_endpoint(std::make_unique<ConnectedHost>(rank, size, store, prefix, deadline));
}

}  // namespace shoal::collectives::transport
