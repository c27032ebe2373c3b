// Delivers datagrams between endpoints exactly once, in no promised order. It numbers packets on
// one UDP socket, acknowledges them selectively, and shrinks a peer's window when packets are lost.
// It models the parts of SRD that a test needs (Shalev et al., "A Cloud-Optimized Transport
// Protocol", IEEE Micro 2020).
//
// Not thread-safe; never waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

#include "options.h"
#include "wire.h"
#include <netinet/in.h>

namespace shoal::test::efa {

using Clock = std::chrono::steady_clock;
using Datagram = std::vector<std::byte>;

struct AddressHash {
  std::size_t operator()(const Address& address) const;
};

// The state that one endpoint keeps about another.
struct Peer {
  struct InFlight {
    Datagram datagram;
    Clock::time_point sent;
    bool acknowledged = false;
  };
  Address address;
  std::size_t number = 0;  // in the order in which the endpoint met its peers
  sockaddr_in where{};
  // Sending: in_flight[i] has sequence number first_in_flight + i.
  std::uint32_t first_in_flight = kFirstSequence;
  std::deque<InFlight> in_flight;
  double window = 32;  // packets
  Clock::time_point last_loss;
  Clock::duration timeout{};
  // Receiving.
  std::uint32_t expected = kFirstSequence;
  std::array<std::uint64_t, kAckWords> received{};
  bool owes_acknowledgement = false;
};

class Link {
 public:
  // Binds a socket to `interface_address`. Throws std::system_error.
  Link(in_addr interface_address, const Options& options);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const Address& address() const { return address_; }
  Peer& peer(const Address& address);
  std::mt19937_64& random() { return random_; }

  // Sends the header, `second` and `third` as the peer's next packet and copies the bytes. Returns
  // false, with nothing sent, if the window or the socket is full.
  bool send(Peer& peer, PacketKind kind, std::span<const std::byte> second,
            std::span<const std::byte> third, std::uint16_t responses = 0);

  // Receives packets, passes new ones to `on_packet` in a shuffled order and resends lost ones.
  // Returns true if a packet arrived.
  using OnPacket = std::function<void(Peer&, const PacketHeader&, std::span<const std::byte> rest)>;
  bool progress(const OnPacket& on_packet);
  // Resends packets that seem lost. progress() does it too; the card's thread calls only this, as
  // hardware resends without the user's polling.
  void send_lost_again();
  // Acknowledges received packets unless another packet has already carried the acknowledgement.
  void acknowledge();

  bool all_acknowledged() const;

 private:
  struct Delayed {
    Clock::time_point due;
    Peer* peer;
    Datagram datagram;
  };
  void fill_header(PacketHeader& header, Peer& peer) const;
  bool transmit(const Peer& peer, std::span<const std::byte> datagram);
  bool lose();
  void receive();
  void take(Datagram datagram);
  void take_acknowledgements(Peer& peer, const PacketHeader& header);
  void send_again(Peer& peer, Clock::time_point now);
  Datagram new_datagram(std::size_t bytes);

  int socket_ = -1;
  Address address_;
  std::mt19937_64 random_;
  std::int64_t delay_us_;
  std::uint32_t loss_per_mille_;
  std::unordered_map<Address, std::unique_ptr<Peer>, AddressHash> peers_;
  std::vector<Delayed> delayed_;
  std::vector<Datagram> spare_;
  std::vector<std::byte> arrivals_;  // recvmmsg's buffers
};

}  // namespace shoal::test::efa
