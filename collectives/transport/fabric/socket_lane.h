// Small messages over plain TCP sockets, beside rails whose provider sends over TCP anyway. One
// system call sends and one receives; tcp;ofi_rxm needs three to wake its own queue for each.
//
// The kernel provides order, delivery and flow control. A message travels here if its peer is
// connected and there is room, else by the rails; the protocol above needs no order between the
// two.
//
// The higher of two ranks connects when the first message passes between them. If a connection
// ends, messages to that peer take the rails only. If it ended with an error, the peer is lost.
//
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shoal/collectives/transport/shared_segment.h"

namespace shoal::collectives::fabric {

// Not thread-safe. Nothing here blocks.
class SocketLane {
 public:
  // Listens at `rail_address`, a sockaddr_in or sockaddr_in6, on its own port. Throws io.
  // `largest`: bytes of a message, including headers.
  SocketLane(const std::string& rail_address, int rank, int size, std::size_t largest);
  ~SocketLane();
  SocketLane(const SocketLane&) = delete;
  SocketLane& operator=(const SocketLane&) = delete;

  // The whole sockaddr, opaque to peers.
  const std::string& address() const { return address_; }
  // Call once before sending. `addresses`: the peers' by rank (empty: none, or this rank). `magic`:
  // the value that ranks of this job send first, so that strangers are rejected.
  void start(std::vector<std::string> addresses, std::uint32_t magic);

  // Begins to connect if that is this rank's part and not done yet.
  void reach(int peer);
  // True if the whole message was copied and is being sent; never sends a part.
  bool send(int peer, std::span<const std::byte> header, std::span<const std::byte> payload);
  // Passes on arrived messages; true if there was progress. Each look is a system call, so it polls
  // the sockets of `wanted` peers; now and then, and after look_closely(), all of them.
  using Take = std::function<void(std::span<const std::byte> message)>;
  using Wanted = std::function<bool(int peer)>;
  bool poll(const Take& take, const Wanted& wanted);
  bool is_open(int peer) const {
    return peers_[static_cast<std::size_t>(peer)].state == State::open;
  }
  // Whether sent data waits here for room in a socket.
  bool unsent() const { return unsent_ > 0; }
  // For poll(2): readable when poll() has something to do. If it was readable, call look_closely()
  // before poll().
  int descriptor() const { return events_.get(); }
  void look_closely() { closely_ = true; }

  struct Loss {
    int peer = -1;
    std::string why;
  };
  // Peers whose connection broke since the last call.
  std::vector<Loss> take_losses();

 private:
  enum class State : std::uint8_t { apart, connecting, open, closed };
  struct Connection {
    State state = State::apart;
    transport::FileDescriptor fd;
    std::vector<std::byte> in, out;  // the beginning of a message; data the socket had no room for
  };
  struct Guest {  // accepted, but has not identified itself
    transport::FileDescriptor fd;
    std::vector<std::byte> in;
  };

  Connection& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  void watch(int fd, std::uint64_t what, bool for_room, bool again);
  void open(int peer, transport::FileDescriptor fd, State state);
  void close(int peer, const char* why);
  void give_up(int peer, int error);
  bool flush(int peer);
  bool receive(int peer, const Take& take);
  void split(int peer, std::span<const std::byte> bytes, const Take& take);
  bool poll_events(const Take& take);
  void settle_connecting(int peer);
  void accept_guests();
  void hear_guest(int fd);

  const int rank_;
  const std::size_t largest_;
  std::uint32_t magic_ = 0;
  std::string address_;
  std::vector<std::string> addresses_;
  transport::FileDescriptor listener_, events_;
  std::vector<Connection> peers_;
  std::vector<int> open_;  // ranks
  std::vector<Guest> guests_;
  std::vector<std::byte> chunk_;
  std::vector<Loss> losses_;
  int unsent_ = 0;
  unsigned polls_ = 0;
  bool closely_ = false;
};

}  // namespace shoal::collectives::fabric
