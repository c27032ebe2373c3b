// Sends small messages over plain TCP sockets, beside rails whose provider uses TCP anyway. A
// message takes one system call to send and one to receive. tcp;ofi_rxm makes three for each just
// to wake its own queue.
//
// The kernel provides order, delivery and flow control. A message takes the socket if its peer is
// connected and there is room, else the rails. The protocol above needs no order between the two.
//
// The higher of two ranks connects when the first message passes between them. If a connection
// ends, messages to that peer take only the rails. If it ended with an error, the peer is lost.
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
  // Listens at `rail_address`, a sockaddr_in or sockaddr_in6, on a port of its own. Throws io.
  // `largest`: maximum bytes of a message, including its header.
  SocketLane(const std::string& rail_address, int rank, int size, std::size_t largest);
  ~SocketLane();
  SocketLane(const SocketLane&) = delete;
  SocketLane& operator=(const SocketLane&) = delete;

  // The whole sockaddr; callers treat it as opaque bytes.
  const std::string& address() const { return address_; }
  // Call once before sending. `addresses`: address() of each rank (empty: no lane, or this rank).
  // `magic`: the value that ranks of this job send first, so that strangers are rejected.
  void start(std::vector<std::string> addresses, std::uint32_t magic);

  // Begins to connect, if this rank is the one to connect and has not done so yet.
  void reach(int peer);
  // True if the lane has taken the whole message. The caller may then reuse `header` and `payload`.
  // The lane never takes part of a message.
  bool send(int peer, std::span<const std::byte> header, std::span<const std::byte> payload);
  // Passes arrived messages to `take`; true if there was progress. Polling a socket costs a system
  // call, so most calls poll only the sockets of `wanted` peers. Now and then, and after
  // look_closely(), a call polls all.
  using Take = std::function<void(std::span<const std::byte> message)>;
  using Wanted = std::function<bool(int peer)>;
  bool poll(const Take& take, const Wanted& wanted);
  bool is_open(int peer) const {
    return peers_[static_cast<std::size_t>(peer)].state == State::open;
  }
  // Whether messages that the lane has taken wait for room in a socket.
  bool unsent() const { return unsent_ > 0; }
  // Descriptor for poll(2), readable when poll() has something to do. If it was readable, call
  // look_closely() before poll().
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
    std::vector<std::byte> in, out;  // beginning of a message; data that awaits room in the socket
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
