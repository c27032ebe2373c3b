#include "shoal/collectives/transport/peer_links.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <stdexcept>

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/rendezvous/cards.h"

namespace shoal::collectives::transport {
namespace {

enum class MessageKind : std::uint32_t { hello = 1, segment = 2, goodbye = 3 };

struct PeerMessage {
  MessageKind kind = MessageKind::hello;
  std::int32_t rank = -1;
  std::int64_t number = 0;  // hello: the secret
  std::uint64_t bytes = 0;
};

// The card that a rank publishes: its host, its secret, and the socket's name. The name comes last,
// because it may contain any byte.
struct Card {
  HostIdentity host;
  std::int64_t secret = 0;
  std::string socket_name;
};

std::string to_text(const Card& card) {
  return fmt::format("{}\n{}\n{}", to_card(card.host), card.secret, card.socket_name);
}

constexpr std::size_t kLongestName = sizeof(sockaddr_un::sun_path) - 1;

Card parse_card(std::string_view text) {
  CardFields fields(text, '\n');
  Card card;
  card.host = read_identity(fields);
  card.secret = fields.number<std::int64_t>("secret");
  card.socket_name = fields.rest("socket");
  if (card.socket_name.empty() || card.socket_name.size() > kLongestName)
    throw_error(ErrorCode::corrupt_data, "its socket has a name of {} bytes",
                card.socket_name.size());
  return card;
}

[[noreturn]] void throw_system(const char* what) {
  throw_error(ErrorCode::io, "native: {}: {}", what, std::strerror(errno));
}

FileDescriptor new_socket() {
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) throw_system("cannot open a Unix socket");
  return fd;
}

// Waits until `fd` is ready for `events`. False if the deadline passed first.
bool wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const double left = std::min(deadline.seconds_left(), 1000.0);
    const int ready = poll(&entry, 1, left <= 0 ? 0 : static_cast<int>(left * 1000) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_system("poll");
    if (ready == 0 && deadline.passed()) return false;
  }
}

// full: the socket has no room, or too many descriptors are in transit.
enum class Sent { yes, full, gone };

// Does not block.
Sent try_send(int socket, const PeerMessage& message, int fd) {
  iovec part{const_cast<PeerMessage*>(&message), sizeof message};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  if (fd >= 0) {
    header.msg_control = space.data();
    header.msg_controllen = space.size();
    cmsghdr* control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(control), &fd, sizeof fd);
  }
  ssize_t sent;
  do sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  if (sent >= 0) return Sent::yes;
  // ETOOMANYREFS: more descriptors of this user are in transit between processes than `ulimit -n`
  // allows (unix(7)). poll() does not report when that ends.
  return errno == EAGAIN || errno == ETOOMANYREFS ? Sent::full : Sent::gone;
}

// Sends a message without a descriptor. False if the peer is gone or the deadline passed.
bool send_message(int socket, const PeerMessage& message, Deadline deadline) {
  for (;;) {
    const Sent sent = try_send(socket, message, -1);
    if (sent != Sent::full) return sent == Sent::yes;
    if (!wait_for(socket, POLLOUT, deadline)) return false;
  }
}

enum class Received { message, nothing, end };

Received receive_message(int socket, PeerMessage& message, FileDescriptor& fd) {
  iovec part{&message, sizeof message};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  header.msg_control = space.data();
  header.msg_controllen = space.size();
  ssize_t got;
  do got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (got < 0 &&
         (errno == EINTR || errno == ECONNRESET));  // data sent before a reset still counts
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::nothing;
  for (cmsghdr* control = got > 0 ? CMSG_FIRSTHDR(&header) : nullptr; control;
       control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    int number = -1;
    std::memcpy(&number, CMSG_DATA(control), sizeof number);
    fd = FileDescriptor(number);
  }
  return got == static_cast<ssize_t>(sizeof message) ? Received::message : Received::end;
}

bool same_user(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         credentials.uid == geteuid();
}

sockaddr_un address_of(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

FileDescriptor listen_anywhere(int size, std::string& name) {
  FileDescriptor listener = new_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Binding the bare family picks a free abstract name.
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0 ||
      listen(listener.get(), size) != 0)
    throw_system("cannot listen on a Unix socket");
  socklen_t length = sizeof address;
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw_system("getsockname");
  name.assign(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
  return listener;
}

}  // namespace

void PeerLinks::throw_missing(const std::vector<int>& missing) const {
  std::vector<int> members;
  for (const int peer : missing) members.push_back(member(peer));
  throw Error(
      ErrorCode::timeout,
      fmt::format("native: rank(s) {} did not join the group in time", fmt::join(members, ", ")),
      "see whether they started and why they stopped")
      .at_rank(member(rank_))
      .with_peer(members.front())
      .in_operation("make_communicator");
}

std::vector<std::string> PeerLinks::exchange_cards(const std::string& own, Store& store,
                                                   const std::string& prefix,
                                                   Deadline deadline) const {
  const auto key = [&](int peer) { return fmt::format("{}/card/{}", prefix, peer); };
  store.set(key(rank_), own);
  std::vector<std::string> cards;
  std::vector<int> missing;
  for (int peer = 0; peer < size_; ++peer) {
    try {
      // After the deadline, get() no longer waits: the loop only finds out which ranks are missing.
      cards.push_back(store.get(key(peer), deadline));
    } catch (const Error& problem) {
      if (problem.code() != ErrorCode::timeout) throw;
      missing.push_back(peer);
    }
  }
  if (!missing.empty()) throw_missing(missing);
  return cards;
}

PeerLinks::PeerLinks(int rank, int size, Store& store, const std::string& prefix, Deadline deadline,
                     std::vector<int> members)
    : rank_(rank),
      size_(size),
      members_(std::move(members)),
      sockets_(static_cast<std::size_t>(size)),
      states_(static_cast<std::size_t>(size), LinkState::open),
      next_(static_cast<std::size_t>(size)) {
  Card own{own_identity(), static_cast<std::int64_t>(std::random_device{}()), {}};
  FileDescriptor listener = listen_anywhere(size, own.socket_name);
  std::vector<Card> cards;
  for (const std::string& text : exchange_cards(to_text(own), store, prefix, deadline))
    cards.push_back(read_card(member(static_cast<int>(cards.size())), "native", text, parse_card));
  std::vector<int> ranks;
  for (const Card& card : cards) {
    ranks.push_back(member(static_cast<int>(ranks.size())));
    hosts_.push_back(card.host);
  }
  check_one_host(hosts_, ranks, rank);

  for (int peer = 0; peer < rank; ++peer) {  // the higher of two ranks connects
    const Card& card = cards[static_cast<std::size_t>(peer)];
    FileDescriptor fd = new_socket();
    socklen_t length = 0;
    const sockaddr_un address = address_of(card.socket_name, length);
    const PeerMessage hello{MessageKind::hello, rank, card.secret, 0};
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        !send_message(fd.get(), hello, deadline))
      throw Error(ErrorCode::peer_lost,
                  fmt::format("native: rank {} left while the group formed", member(peer)),
                  "look at that rank's own output for the cause")
          .at_rank(member(rank))
          .with_peer(member(peer))
          .in_operation("make_communicator");
    sockets_[static_cast<std::size_t>(peer)] = std::move(fd);
  }
  for (int arrived = rank + 1; arrived < size;) {
    const bool ready = wait_for(listener.get(), POLLIN, deadline);
    FileDescriptor fd(ready ? accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC) : -1);
    PeerMessage hello;
    FileDescriptor unexpected;
    const bool heard = fd && same_user(fd.get()) && wait_for(fd.get(), POLLIN, deadline) &&
                       receive_message(fd.get(), hello, unexpected) == Received::message;
    if (heard && hello.kind == MessageKind::hello && hello.number == own.secret &&
        hello.rank > rank && hello.rank < size && !sockets_[static_cast<std::size_t>(hello.rank)]) {
      sockets_[static_cast<std::size_t>(hello.rank)] = std::move(fd);
      ++arrived;
    } else if (!ready || deadline.passed()) {
      std::vector<int> missing;
      for (int peer = rank + 1; peer < size; ++peer)
        if (!sockets_[static_cast<std::size_t>(peer)]) missing.push_back(peer);
      throw_missing(missing);
    }
  }
}

PeerLinks::~PeerLinks() {
  for (int peer = 0; peer < size_; ++peer) {
    const FileDescriptor& socket = sockets_[static_cast<std::size_t>(peer)];
    if (!socket) continue;
    const PeerMessage goodbye{MessageKind::goodbye, rank_, 0, 0};
    try {
      send_message(socket.get(), goodbye, deadlines::at_once());
    } catch (const Error& problem) {
      // The peer will see the end of file.
      log::debug("rank {}: no goodbye to rank {}: {}", rank_, peer, problem.what());
    }
  }
}

void PeerLinks::announce(std::int64_t number, std::shared_ptr<SharedSegment> segment) {
  announcements_.push_back({number, std::move(segment)});
  send_announcements();
}

void PeerLinks::send_announcements() {
  if (announcements_.empty()) return;
  std::size_t taken = announcements_.size();  // announcements that all peers have
  for (int peer = 0; peer < size_; ++peer) {
    std::size_t& next = next_[static_cast<std::size_t>(peer)];
    const FileDescriptor& socket = sockets_[static_cast<std::size_t>(peer)];
    bool open = socket && state(peer) == LinkState::open;
    while (open && next < announcements_.size()) {
      const Announcement& a = announcements_[next];
      const PeerMessage message{MessageKind::segment, rank_, a.number, a.segment->size()};
      const Sent sent = try_send(socket.get(), message, a.segment->fd());
      if (sent == Sent::full) break;
      if (sent == Sent::gone) open = false;  // drain() reports it
      if (sent == Sent::yes) ++next;
    }
    if (!open) next = announcements_.size();
    taken = std::min(taken, next);
  }
  for (std::size_t i = 0; i < taken; ++i) {
    announcements_.front().segment->close_fd();
    announcements_.pop_front();
  }
  for (std::size_t& next : next_) next -= taken;
}

std::vector<int> PeerLinks::behind() const {
  std::vector<int> peers;
  for (int peer = 0; peer < size_; ++peer)
    if (next_[static_cast<std::size_t>(peer)] < announcements_.size()) peers.push_back(peer);
  return peers;
}

void PeerLinks::drain(const OnSegment& on_segment) {
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) drain_peer(peer, on_segment);
  send_announcements();
}

void PeerLinks::drain_peer(int peer, const OnSegment& on_segment) {
  LinkState& state = states_[static_cast<std::size_t>(peer)];
  while (state == LinkState::open) {
    PeerMessage message;
    FileDescriptor fd;
    switch (receive_message(sockets_[static_cast<std::size_t>(peer)].get(), message, fd)) {
      case Received::nothing:
        return;
      case Received::end:
        state = LinkState::lost;
        return;
      case Received::message:
        if (message.kind == MessageKind::goodbye) state = LinkState::left;
        if (message.kind != MessageKind::segment) break;
        if (!fd)  // the kernel found no free descriptor here and dropped it (MSG_CTRUNC)
          throw Error(ErrorCode::io,
                      fmt::format("native: memory that rank {} shares did not arrive: this process "
                                  "has no file descriptor left",
                                  member(peer)),
                      "raise `ulimit -n`")
              .at_rank(member(rank_))
              .with_peer(member(peer));
        on_segment(peer, message.number, message.bytes, std::move(fd));
    }
  }
}

}  // namespace shoal::collectives::transport
