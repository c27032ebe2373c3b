#include "link.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace shoal::test::efa {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::uint32_t kMagic = 0x53454641;
constexpr double kSmallestWindow = 4, kQuickGrowth = 32, kLargestWindow = 128;
static_assert(kLargestWindow < kAckBits);
constexpr auto kShortestTimeout = milliseconds(20), kLongestTimeout = milliseconds(400);
// A packet counts as lost once this many later ones have arrived, unless it was resent recently.
constexpr std::uint32_t kOvertaken = 8;
constexpr auto kRepetitionTime = milliseconds(3);
constexpr std::size_t kBatch = 32, kMostInOneProgress = 128;

std::uint32_t random_key() { return std::random_device{}(); }

PacketHeader header_of(const Datagram& datagram) {
  PacketHeader header;
  std::memcpy(&header, datagram.data(), sizeof header);
  return header;
}

bool test_bit(const std::array<std::uint64_t, kAckWords>& bits, std::uint32_t index) {
  return (bits[index / 64] >> (index % 64) & 1) != 0;
}

// Shifts all bits down by one.
void shift_down(std::array<std::uint64_t, kAckWords>& bits) {
  for (std::size_t word = 0; word < bits.size(); ++word)
    bits[word] = bits[word] >> 1 | (word + 1 < bits.size() ? bits[word + 1] << 63 : 0);
}

}  // namespace

std::size_t AddressHash::operator()(const Address& address) const {
  std::uint32_t host = 0;
  std::memcpy(&host, address.gid.data() + 12, sizeof host);
  return std::hash<std::uint64_t>{}((std::uint64_t{host} << 32 | address.qkey) ^
                                    (std::uint64_t{address.qpn} << 16));
}

Link::Link(in_addr interface_address, const Options& options)
    : random_(options.seed),
      delay_us_(options.delay_us),
      loss_per_mille_(options.loss_per_mille),
      arrivals_(kBatch * kLargestDatagram) {
  socket_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_ < 0) throw std::system_error(errno, std::generic_category(), "socket");
  const int bytes = 4 << 20;  // the kernel may grant less
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr = interface_address;
  socklen_t length = sizeof here;
  if (::bind(socket_, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0 ||
      ::getsockname(socket_, reinterpret_cast<sockaddr*>(&here), &length) != 0) {
    const int error = errno;
    ::close(socket_);
    throw std::system_error(error, std::generic_category(), "bind");
  }
  address_.gid[10] = address_.gid[11] = 0xff;
  std::memcpy(address_.gid.data() + 12, &here.sin_addr, 4);
  address_.qpn = ntohs(here.sin_port);
  address_.qkey = random_key();
}

Link::~Link() { ::close(socket_); }

Peer& Link::peer(const Address& address) {
  std::unique_ptr<Peer>& peer = peers_[address];
  if (!peer) {
    peer = std::make_unique<Peer>();
    peer->address = address;
    peer->number = peers_.size();
    peer->where.sin_family = AF_INET;
    peer->where.sin_port = htons(address.qpn);
    std::memcpy(&peer->where.sin_addr, address.gid.data() + 12, 4);
    peer->timeout = kShortestTimeout;
  }
  return *peer;
}

Datagram Link::new_datagram(std::size_t bytes) {
  Datagram datagram;
  if (!spare_.empty()) {
    datagram = std::move(spare_.back());
    spare_.pop_back();
  }
  datagram.resize(bytes);
  return datagram;
}

void Link::fill_header(PacketHeader& header, Peer& peer) const {
  header.magic = kMagic;
  header.to_qkey = peer.address.qkey;
  header.from = address_;
  header.expected = peer.expected;
  header.received = peer.received;
}

bool Link::lose() { return loss_per_mille_ > 0 && random_() % 1000 < loss_per_mille_; }

// Returns false if the socket is full. Any other failure counts as a packet lost on the way.
bool Link::transmit(const Peer& peer, std::span<const std::byte> datagram) {
  if (lose()) return true;
  const ssize_t sent = ::sendto(socket_, datagram.data(), datagram.size(), 0,
                                reinterpret_cast<const sockaddr*>(&peer.where), sizeof peer.where);
  return sent >= 0 || (errno != EAGAIN && errno != ENOBUFS);
}

bool Link::send(Peer& peer, PacketKind kind, std::span<const std::byte> second,
                std::span<const std::byte> third, std::uint16_t responses) {
  if (static_cast<double>(peer.in_flight.size()) >= peer.window) return false;
  PacketHeader header;
  fill_header(header, peer);
  header.kind = kind;
  header.responses = responses;
  header.bytes = static_cast<std::uint32_t>(third.size());
  header.sequence = peer.first_in_flight + static_cast<std::uint32_t>(peer.in_flight.size());
  Datagram datagram = new_datagram(sizeof header + second.size() + third.size());
  std::memcpy(datagram.data(), &header, sizeof header);
  std::ranges::copy(second, datagram.data() + sizeof header);
  std::ranges::copy(third, datagram.data() + sizeof header + second.size());
  if (!transmit(peer, datagram)) {
    spare_.push_back(std::move(datagram));
    return false;
  }
  peer.owes_acknowledgement = false;
  peer.in_flight.push_back({std::move(datagram), Clock::now()});
  return true;
}

bool Link::progress(const OnPacket& on_packet) {
  receive();
  const auto now = Clock::now();
  // New packets are delivered in random order, because SRD sprays packets over many paths.
  std::ranges::shuffle(delayed_, random_);
  std::vector<Delayed> later, ready;
  for (Delayed& delayed : delayed_)
    (delayed.due > now ? later : ready).push_back(std::move(delayed));
  delayed_ = std::move(later);
  for (Delayed& delayed : ready) {
    const PacketHeader header = header_of(delayed.datagram);
    on_packet(*delayed.peer, header, std::span(delayed.datagram).subspan(sizeof header));
    spare_.push_back(std::move(delayed.datagram));
  }
  send_lost_again();
  return !ready.empty();
}

void Link::send_lost_again() {
  const auto now = Clock::now();
  for (auto& [address, peer] : peers_) send_again(*peer, now);
}

void Link::receive() {
  std::array<mmsghdr, kBatch> messages{};
  std::array<iovec, kBatch> places{};
  for (std::size_t taken = 0; taken < kMostInOneProgress;) {
    for (std::size_t i = 0; i < kBatch; ++i) {
      places[i] = {arrivals_.data() + i * kLargestDatagram, kLargestDatagram};
      messages[i].msg_hdr.msg_iov = &places[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    const int count = ::recvmmsg(socket_, messages.data(), kBatch, MSG_DONTWAIT, nullptr);
    if (count <= 0) return;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const std::size_t bytes = messages[i].msg_len;
      if (bytes < sizeof(PacketHeader)) continue;
      Datagram datagram = new_datagram(bytes);
      std::memcpy(datagram.data(), places[i].iov_base, bytes);
      take(std::move(datagram));
    }
    taken += static_cast<std::size_t>(count);
    if (static_cast<std::size_t>(count) < kBatch) return;
  }
}

void Link::take(Datagram datagram) {
  const PacketHeader header = header_of(datagram);
  if (header.magic != kMagic || header.to_qkey != address_.qkey) return;  // for another endpoint
  Peer& from = peer(header.from);
  take_acknowledgements(from, header);
  if (header.kind == PacketKind::acknowledge) {
    spare_.push_back(std::move(datagram));
    return;
  }
  from.owes_acknowledgement = true;
  const std::uint32_t ahead = header.sequence - from.expected;
  const bool repeated = static_cast<std::int32_t>(ahead) < 0 || ahead > kAckBits ||
                        (ahead > 0 && test_bit(from.received, ahead - 1));
  if (repeated) {
    spare_.push_back(std::move(datagram));
    return;
  }
  if (ahead > 0) {
    from.received[(ahead - 1) / 64] |= std::uint64_t{1} << ((ahead - 1) % 64);
  } else {
    bool next_has_come = true;
    while (next_has_come) {
      ++from.expected;
      next_has_come = (from.received[0] & 1) != 0;
      shift_down(from.received);
    }
  }
  auto due = Clock::time_point::min();
  if (delay_us_ > 0 && (random_() & 1) != 0)
    due = Clock::now() + microseconds(random_() % static_cast<std::uint64_t>(delay_us_));
  delayed_.push_back({due, &from, std::move(datagram)});
}

void Link::take_acknowledgements(Peer& peer, const PacketHeader& header) {
  const auto count = static_cast<std::uint32_t>(peer.in_flight.size());
  bool news = false;
  const auto acknowledge_one = [&](std::uint32_t sequence) {
    const std::uint32_t index = sequence - peer.first_in_flight;
    if (index >= count || peer.in_flight[index].acknowledged) return;
    peer.in_flight[index].acknowledged = news = true;
    // The window grows as in TCP: quickly at first, then by one packet for each round trip.
    if (peer.window < kQuickGrowth)
      peer.window += 1;
    else if (peer.window < kLargestWindow)
      peer.window += 1 / peer.window;
  };
  if (static_cast<std::int32_t>(header.expected - peer.first_in_flight) > 0)
    for (std::uint32_t sequence = peer.first_in_flight; sequence != header.expected; ++sequence)
      acknowledge_one(sequence);
  std::uint32_t last = header.expected;
  for (std::uint32_t bit = 0; bit < kAckBits; ++bit)
    if (test_bit(header.received, bit)) acknowledge_one(last = header.expected + 1 + bit);
  if (news) peer.timeout = kShortestTimeout;

  // A UDP loopback keeps order, so a packet that later ones overtook is lost. All of them are
  // resent at once.
  const auto now = Clock::now();
  for (std::uint32_t index = 0; index < count; ++index) {
    Peer::InFlight& packet = peer.in_flight[index];
    const std::uint32_t sequence = peer.first_in_flight + index;
    if (static_cast<std::int32_t>(last - sequence) < static_cast<std::int32_t>(kOvertaken)) break;
    if (packet.acknowledged || now - packet.sent < kRepetitionTime) continue;
    packet.sent = now;
    transmit(peer, packet.datagram);
    if (now - peer.last_loss > kRepetitionTime) {
      peer.last_loss = now;
      peer.window = std::max(kSmallestWindow, peer.window / 2);
    }
  }
  while (!peer.in_flight.empty() && peer.in_flight.front().acknowledged) {
    spare_.push_back(std::move(peer.in_flight.front().datagram));
    peer.in_flight.pop_front();
    ++peer.first_in_flight;
  }
}

void Link::send_again(Peer& peer, Clock::time_point now) {
  if (peer.in_flight.empty() || now - peer.in_flight.front().sent < peer.timeout) return;
  // The peer is silent, perhaps because it computes and does not poll. Only a few packets are
  // resent, at growing intervals.
  std::size_t sent = 0;
  for (Peer::InFlight& packet : peer.in_flight) {
    if (packet.acknowledged) continue;
    PacketHeader header = header_of(packet.datagram);
    fill_header(header, peer);
    std::memcpy(packet.datagram.data(), &header, sizeof header);
    packet.sent = now;
    if (!transmit(peer, packet.datagram) || ++sent == static_cast<std::size_t>(kSmallestWindow))
      break;
  }
  peer.window = std::max(kSmallestWindow, peer.window / 2);
  peer.timeout = std::min<Clock::duration>(peer.timeout * 2, kLongestTimeout);
}

void Link::acknowledge() {
  for (auto& [address, peer] : peers_) {
    if (!peer->owes_acknowledgement) continue;
    PacketHeader header;
    fill_header(header, *peer);
    if (transmit(*peer, std::as_bytes(std::span(&header, 1)))) peer->owes_acknowledgement = false;
  }
}

bool Link::all_acknowledged() const {
  return std::ranges::all_of(peers_,
                             [](const auto& entry) { return entry.second->in_flight.empty(); });
}

}  // namespace shoal::test::efa
