#include "shoal/collectives/transport/fabric/socket_lane.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::fabric {
namespace {

// Values of epoll_event::data: a peer's rank, kListener, or kGuest plus the guest's descriptor.
constexpr std::uint64_t kListener = std::uint64_t{1} << 32, kGuest = std::uint64_t{1} << 33;
// Up to this many sockets are read one by one, without first asking epoll which are ready.
constexpr std::size_t kAskedDirectly = 4;
constexpr unsigned kEventsEvery = 64;  // polls between looks for new connections
constexpr std::size_t kChunkBytes = 64 << 10;
constexpr std::size_t kMostGuests = 64;

struct Hello {
  std::uint32_t magic = 0;
  std::int32_t rank = -1;
};
using Length = std::uint32_t;  // before each message

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

sockaddr_storage parse(const std::string& address) {
  sockaddr_storage parsed{};
  std::memcpy(&parsed, address.data(), std::min(address.size(), sizeof parsed));
  return parsed;
}

void set_no_delay(int fd) {
  const int on = 1;  // a failure of the call below costs only time
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

SocketLane::SocketLane(const std::string& rail_address, int rank, int size, std::size_t largest)
    : rank_(rank),
      largest_(largest),
      events_(epoll_create1(EPOLL_CLOEXEC)),
      peers_(static_cast<std::size_t>(size)),
      chunk_(kChunkBytes + largest + sizeof(Length)) {
  sockaddr_storage own = parse(rail_address);
  auto length = static_cast<socklen_t>(own.ss_family == AF_INET6 ? sizeof(sockaddr_in6)
                                                                 : sizeof(sockaddr_in));
  if (own.ss_family == AF_INET6)
    reinterpret_cast<sockaddr_in6&>(own).sin6_port = 0;
  else
    reinterpret_cast<sockaddr_in&>(own).sin_port = 0;
  listener_ = transport::FileDescriptor(
      socket(own.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  auto* const name = reinterpret_cast<sockaddr*>(&own);
  if (!events_ || !listener_ || bind(listener_.get(), name, length) != 0 ||
      listen(listener_.get(), std::max(16, size)) != 0 ||
      getsockname(listener_.get(), name, &length) != 0)
    throw_error(ErrorCode::io, "fabric: cannot listen for small messages: {}",
                std::strerror(errno));
  address_.assign(reinterpret_cast<const char*>(&own), length);
  watch(listener_.get(), kListener, false, false);
}

// The kernel still delivers data that the sockets have taken. But it resets a socket that is closed
// with unread data, so reads all of it first.
SocketLane::~SocketLane() {
  for (const int peer : open_)
    while (recv(at(peer).fd.get(), chunk_.data(), chunk_.size(), MSG_DONTWAIT) > 0) {
    }
}

void SocketLane::start(std::vector<std::string> addresses, std::uint32_t magic) {
  SHOAL_CHECK(addresses.size() == peers_.size(), "fabric: {} addresses for {} ranks",
              addresses.size(), peers_.size());
  addresses_ = std::move(addresses);
  magic_ = magic;
}

void SocketLane::watch(int fd, std::uint64_t what, bool for_room, bool again) {
  epoll_event event{};
  event.events = EPOLLIN | (for_room ? EPOLLOUT : 0u);
  event.data.u64 = what;
  if (epoll_ctl(events_.get(), again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) != 0)
    throw_error(ErrorCode::io, "fabric: epoll_ctl failed: {}", std::strerror(errno));
}

void SocketLane::open(int peer, transport::FileDescriptor fd, State state) {
  set_no_delay(fd.get());
  Connection& connection = at(peer);
  connection.fd = std::move(fd);
  connection.state = state;
  if (state == State::open) open_.push_back(peer);
}

void SocketLane::close(int peer, const char* why) {
  Connection& connection = at(peer);
  if (!connection.out.empty()) --unsent_;
  if (why && connection.state == State::open)
    losses_.push_back({peer, fmt::format("its connection for small messages ended: {}", why)});
  std::erase(open_, peer);
  connection = Connection();  // also removes it from events_
  connection.state = State::closed;
}

void SocketLane::reach(int peer) {
  if (peer >= rank_ || at(peer).state != State::apart) return;
  const std::string& address = addresses_[static_cast<std::size_t>(peer)];
  Connection& connection = at(peer);
  connection.state = State::closed;
  if (address.empty()) return;
  const sockaddr_storage theirs = parse(address);
  transport::FileDescriptor fd(
      socket(theirs.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int result = connect(fd.get(), reinterpret_cast<const sockaddr*>(&theirs),
                             static_cast<socklen_t>(address.size()));
  if (result != 0 && errno != EINPROGRESS) return give_up(peer, errno);
  open(peer, std::move(fd), State::connecting);
  watch(connection.fd.get(), static_cast<std::uint64_t>(peer), true, false);
}

void SocketLane::give_up(int peer, int error) {
  log::once(log::Level::warn, "fabric-no-lane",
            fmt::format("fabric: no connection to rank {} for small messages ({}); they take the "
                        "provider's way, which is slower",
                        peer, std::strerror(error)));
  close(peer, nullptr);
}

// Called when the connection is established or has failed.
void SocketLane::settle_connecting(int peer) {
  Connection& connection = at(peer);
  int error = 0;
  socklen_t length = sizeof error;
  const Hello hello{magic_, rank_};
  // The empty socket buffer takes the whole hello, unless the connection is unusable.
  if (getsockopt(connection.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0 ||
      ::send(connection.fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) !=
          static_cast<ssize_t>(sizeof hello))
    return give_up(peer, error != 0 ? error : errno);
  connection.state = State::open;
  open_.push_back(peer);
  watch(connection.fd.get(), static_cast<std::uint64_t>(peer), false, true);
}

void SocketLane::accept_guests() {
  for (;;) {
    transport::FileDescriptor fd(
        accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;  // no more guests, or no free descriptor: messages then use the rails
    if (guests_.size() >= kMostGuests) guests_.erase(guests_.begin());
    watch(fd.get(), kGuest | static_cast<std::uint64_t>(fd.get()), false, false);
    guests_.push_back({std::move(fd), {}});
  }
}

void SocketLane::hear_guest(int fd) {
  const auto guest =
      std::ranges::find_if(guests_, [&](const Guest& g) { return g.fd.get() == fd; });
  if (guest == guests_.end()) return;
  std::array<std::byte, sizeof(Hello)> bytes;
  const ssize_t n = recv(fd, bytes.data(), bytes.size() - guest->in.size(), MSG_DONTWAIT);
  if (n < 0 && would_block(errno)) return;
  if (n <= 0) {
    guests_.erase(guest);
    return;
  }
  guest->in.insert(guest->in.end(), bytes.begin(), bytes.begin() + n);
  if (guest->in.size() < sizeof(Hello)) return;
  Hello hello;
  std::memcpy(&hello, guest->in.data(), sizeof hello);
  const bool expected = hello.magic == magic_ && hello.rank > rank_ &&
                        hello.rank < static_cast<int>(peers_.size()) &&
                        at(hello.rank).state == State::apart;
  transport::FileDescriptor kept = std::move(guest->fd);
  guests_.erase(guest);
  if (!expected) {
    log::once(log::Level::warn, "fabric-stranger",
              "fabric: turned away a connection that is not of this job");
    return;
  }
  watch(kept.get(), static_cast<std::uint64_t>(hello.rank), false, true);
  open(hello.rank, std::move(kept), State::open);
}

bool SocketLane::send(int peer, std::span<const std::byte> header,
                      std::span<const std::byte> payload) {
  Connection& connection = at(peer);
  if (connection.state != State::open || !connection.out.empty()) return false;
  const auto length = static_cast<Length>(header.size() + payload.size());
  SHOAL_ASSERT(length <= largest_);
  std::array<iovec, 3> parts{{{const_cast<Length*>(&length), sizeof length},
                              {const_cast<std::byte*>(header.data()), header.size()},
                              {const_cast<std::byte*>(payload.data()), payload.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = payload.empty() ? 2 : 3;
  const ssize_t sent = sendmsg(connection.fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (!would_block(errno)) close(peer, std::strerror(errno));
    return false;
  }
  auto skip = static_cast<std::size_t>(sent);
  if (skip == sizeof length + length) return true;
  // The socket took only a part. The rest must follow before any other message.
  for (const iovec& part : parts) {
    const std::size_t left_out = std::min(skip, part.iov_len);
    skip -= left_out;
    const auto* const from = static_cast<const std::byte*>(part.iov_base);
    connection.out.insert(connection.out.end(), from + left_out, from + part.iov_len);
  }
  ++unsent_;
  watch(connection.fd.get(), static_cast<std::uint64_t>(peer), true, true);
  return true;
}

bool SocketLane::flush(int peer) {
  Connection& connection = at(peer);
  if (connection.out.empty()) return false;
  const ssize_t sent = ::send(connection.fd.get(), connection.out.data(), connection.out.size(),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (!would_block(errno)) close(peer, std::strerror(errno));
    return false;
  }
  connection.out.erase(connection.out.begin(), connection.out.begin() + sent);
  if (connection.out.empty()) {
    --unsent_;
    watch(connection.fd.get(), static_cast<std::uint64_t>(peer), false, true);
  }
  return sent > 0;
}

bool SocketLane::receive(int peer, const Take& take) {
  Connection& connection = at(peer);
  const std::size_t had = connection.in.size();
  const ssize_t n =
      recv(connection.fd.get(), chunk_.data() + had, chunk_.size() - had, MSG_DONTWAIT);
  if (n < 0) {
    if (!would_block(errno)) close(peer, std::strerror(errno));
    return false;
  }
  if (n == 0) {
    close(peer, had > 0 || !connection.out.empty() ? "in the middle of a message" : nullptr);
    return true;
  }
  std::ranges::copy(connection.in, chunk_.begin());
  connection.in.clear();
  split(peer, std::span(chunk_).first(had + static_cast<std::size_t>(n)), take);
  return true;
}

void SocketLane::split(int peer, std::span<const std::byte> bytes, const Take& take) {
  while (bytes.size() >= sizeof(Length)) {
    Length length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    if (length > largest_) return close(peer, "something else than a message came");
    if (bytes.size() < sizeof length + length) break;
    take(bytes.subspan(sizeof length, length));
    bytes = bytes.subspan(sizeof length + length);
  }
  at(peer).in.assign(bytes.begin(), bytes.end());
}

bool SocketLane::poll(const Take& take, const Wanted& wanted) {
  // poll_events() also handles peers that are still connecting, and guests.
  const bool rarely = ++polls_ % kEventsEvery == 0;
  if (rarely || unsent_ > 0 || std::exchange(closely_, false)) return poll_events(take);
  std::array<int, kAskedDirectly> asked;
  std::size_t count = 0;
  for (const int peer : open_) {
    if (!wanted(peer)) continue;
    if (count == asked.size()) return poll_events(take);
    asked[count++] = peer;
  }
  bool moved = false;
  for (const int peer : std::span(asked).first(count))
    if (at(peer).state == State::open) moved = receive(peer, take) || moved;
  return moved;
}

bool SocketLane::poll_events(const Take& take) {
  std::array<epoll_event, 64> ready;
  const int count = epoll_wait(events_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  bool moved = false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = ready[static_cast<std::size_t>(i)];
    if (event.data.u64 == kListener) {
      accept_guests();
    } else if ((event.data.u64 & kGuest) != 0) {
      hear_guest(static_cast<int>(event.data.u64 & ~kGuest));
    } else {
      const auto peer = static_cast<int>(event.data.u64);
      if (at(peer).state == State::connecting) settle_connecting(peer);
      if (at(peer).state == State::open && (event.events & EPOLLOUT) != 0)
        moved = flush(peer) || moved;
      if (at(peer).state == State::open && (event.events & ~EPOLLOUT) != 0)
        moved = receive(peer, take) || moved;
    }
  }
  return moved;
}

std::vector<SocketLane::Loss> SocketLane::take_losses() { return std::exchange(losses_, {}); }

}  // namespace shoal::collectives::fabric
