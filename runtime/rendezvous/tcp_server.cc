#include "shoal/runtime/rendezvous/tcp_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/descriptor.h"
#include "shoal/runtime/rendezvous/store_internal.h"
#include "shoal/runtime/rendezvous/tcp_protocol.h"

namespace shoal {
namespace {

using store::FieldReader;
using store::Operation;
using store::Status;

// Limit on the total size of all values, so that foreign clients cannot exhaust rank 0's memory.
constexpr std::size_t kMaxStoredBytes = std::size_t{1} << 30;
// Most clients that have not shown the job's token yet.
constexpr std::size_t kMaxStrangers = 64;

struct Connection {
  explicit Connection(const JobToken& token) : handshake(token, store::kPurpose) {}
  int fd = -1;
  enum class Step : std::uint8_t { hello, proof, admitted } step = Step::hello;
  bool closed = false;
  handshake::Server handshake;
  std::string in, out;
  std::size_t sent = 0;
  std::string waits_for;  // key of an unanswered get; empty: none
  Clock::time_point accepted = Clock::now(), last_heard = accepted;

  bool is_stranger() const { return step != Step::admitted; }
  // Bytes of the handshake that are still to come, so that a stranger's cost no more memory.
  std::size_t still_to_come() const {
    const std::size_t all =
        step == Step::hello ? store::kClientGreeting.size() + handshake::kHello : handshake::kProof;
    return all - in.size();
  }
};

std::string answer(Status status, std::string_view value = {}) {
  std::string frame;
  store::put_integer(frame, static_cast<std::uint32_t>(1 + value.size()));
  frame += static_cast<char>(status);
  frame += value;
  return frame;
}

int listen_on(const addrinfo& address, int port, bool dual_stack) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int yes = 1, v6only = dual_stack ? 0 : 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_storage storage{};
  std::memcpy(&storage, address.ai_addr, address.ai_addrlen);
  if (address.ai_family == AF_INET6) {
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof v6only);
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(static_cast<std::uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(static_cast<std::uint16_t>(port));
  }
  if (::bind(fd, reinterpret_cast<sockaddr*>(&storage), address.ai_addrlen) == 0 &&
      ::listen(fd, SOMAXCONN) == 0)
    return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

int port_of(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return 0;
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

}  // namespace

// Only the serving thread runs these functions, except the constructor and the destructor. So no
// lock is needed.
class TcpStoreServer::Impl {
 public:
  Impl(int port, const std::string& bind_address, const JobToken& token) : token_(token) {
    SHOAL_CHECK(port >= 0 && port <= 65535, "a TCP port is 0 to 65535, not {}", port);
    open_listeners(port, bind_address);
    wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0) {
      close_listeners();
      throw_error(ErrorCode::io, "tcp store: eventfd: {}", std::strerror(errno));
    }
    // The program's own threads handle signals, not the serving thread.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      close_listeners();
      ::close(wake_);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Impl() {
    stop_ = true;
    const std::uint64_t one = 1;
    (void)!::write(wake_, &one, sizeof one);
    thread_.join();
    for (const Connection& connection : connections_) ::close(connection.fd);
    close_listeners();
    ::close(wake_);
  }

  int port() const { return port_; }
  int connected() const { return connected_; }
  int refused() const { return refused_; }

 private:
  void open_listeners(int port, const std::string& bind_address) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    const char* node = bind_address.empty() ? nullptr : bind_address.c_str();
    const int problem = ::getaddrinfo(node, "0", &hints, &found);
    if (problem != 0)
      throw_error(ErrorCode::io, "tcp store: cannot resolve '{}': {}", bind_address,
                  ::gai_strerror(problem));
    std::vector<const addrinfo*> order;
    for (const addrinfo* a = found; a; a = a->ai_next) order.push_back(a);
    // IPv6 first: without a bind address its socket also accepts IPv4.
    std::ranges::stable_partition(order, [](auto* a) { return a->ai_family == AF_INET6; });
    int error = 0;
    for (const addrinfo* address : order) {
      const int fd = listen_on(*address, port_ ? port_ : port, bind_address.empty());
      if (fd < 0) {
        error = errno;
        continue;
      }
      listeners_.push_back(fd);
      if (!port_) port_ = port_of(fd);
      if (bind_address.empty()) break;
    }
    ::freeaddrinfo(found);
    if (listeners_.empty())
      throw Error(
          ErrorCode::io,
          fmt::format("tcp store: cannot listen on {}:{}: {}",
                      bind_address.empty() ? "*" : bind_address, port, std::strerror(error)),
          error == EADDRINUSE ? "another job holds the port; set MASTER_PORT to a free one"
                              : "MASTER_ADDR must be an address of rank 0's host");
  }

  void close_listeners() {
    for (const int fd : listeners_) ::close(fd);
    listeners_.clear();
  }

  // Nothing that a client does may end this thread, and with it the job.
  void serve() {
    while (!stop_) {
      try {
        turn();
      } catch (const std::exception& problem) {  // memory ran out, for example
        log::warn("tcp store: {}", problem.what());
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }

  void turn() {
    std::vector<pollfd> polled{{wake_, POLLIN, 0}};
    std::vector<Connection*> who;
    // Without free descriptors accept() keeps failing, and strangers may fill all places, so the
    // queue is not polled for a while.
    const bool accepting = Clock::now() >= accept_again_;
    for (const int fd : listeners_)
      polled.push_back({fd, static_cast<short>(accepting ? POLLIN : 0), 0});
    for (Connection& connection : connections_) {
      const bool writes = connection.sent < connection.out.size();
      polled.push_back({connection.fd, static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
      who.push_back(&connection);
    }
    if (::poll(polled.data(), static_cast<nfds_t>(polled.size()), accepting ? 1000 : 10) < 0) {
      if (errno == EINTR) return;
      throw_error(ErrorCode::io, "poll: {}", std::strerror(errno));
    }
    const std::size_t first = 1 + listeners_.size();
    for (std::size_t i = 0; i < who.size(); ++i) {
      const short events = polled[first + i].revents;
      try {
        if (events & POLLOUT) flush(*who[i]);
        if (events & (POLLIN | POLLHUP | POLLERR | POLLNVAL)) receive(*who[i]);
      } catch (const std::exception& problem) {
        log::warn("tcp store: a request failed ({}); its connection is closed", problem.what());
        refuse(*who[i]);
      }
    }
    for (std::size_t i = 0; i < listeners_.size(); ++i)
      if (polled[1 + i].revents & POLLIN) accept_all(listeners_[i]);
    drop_stalled();
    connections_.remove_if([](const Connection& connection) {
      if (connection.closed) ::close(connection.fd);
      return connection.closed;
    });
    connected_ = static_cast<int>(connections_.size());
  }

  void accept_all(int listener) {
    for (;;) {
      Connection* const leaves = oldest_stranger_of_too_many();
      if (leaves && seconds_since(leaves->accepted) < deadlines::kShortestGreeting) {
        accept_again_ = Clock::now() + std::chrono::milliseconds(10);
        return;
      }
      Descriptor fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd.get() < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EAGAIN) accept_again_ = Clock::now() + std::chrono::milliseconds(100);
        return;
      }
      if (leaves) refuse(*leaves);
      const int yes = 1;
      ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
      connections_.emplace_back(token_).fd = fd.release();
    }
  }

  // The stranger that goes if one more comes, because kMaxStrangers wait; null: none has to go. It
  // stays until a rank's handshake could have ended. A rank that is turned away connects again.
  Connection* oldest_stranger_of_too_many() {
    const auto waits = [](const Connection& connection) {
      return connection.is_stranger() && !connection.closed;
    };
    if (static_cast<std::size_t>(std::ranges::count_if(connections_, waits)) < kMaxStrangers)
      return nullptr;
    return &*std::ranges::find_if(connections_, waits);
  }

  void refuse(Connection& connection) {
    connection.closed = true;
    ++refused_;
  }

  void drop_stalled() {
    for (Connection& connection : connections_) {
      if (connection.closed) continue;
      if (connection.is_stranger()
              ? seconds_since(connection.accepted) > deadlines::kStoreGreeting
              : !connection.in.empty() &&
                    seconds_since(connection.last_heard) > deadlines::kStoreStall)
        refuse(connection);
    }
  }

  void receive(Connection& connection) {
    std::array<char, 65536> block;
    // Reads a bounded number of blocks a turn, so that a busy client does not starve the others.
    for (int turn = 0; turn < 16 && !connection.closed; ++turn) {
      const std::size_t most = connection.is_stranger() ? connection.still_to_come() : block.size();
      const ssize_t count = ::recv(connection.fd, block.data(), most, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (count <= 0) {  // the client is gone; its unfinished request is dropped
        connection.closed = true;
        return;
      }
      connection.last_heard = Clock::now();
      connection.in.append(block.data(), static_cast<std::size_t>(count));
      digest(connection);
    }
  }

  // A client's side of the handshake.
  void greet(Connection& connection) {
    std::string& in = connection.in;
    if (connection.step == Connection::Step::hello) {
      const std::string_view greeting = store::kClientGreeting;
      const std::size_t have = std::min(in.size(), greeting.size());
      if (in.compare(0, have, greeting.substr(0, have)) != 0) return refuse(connection);
      if (connection.still_to_come() > 0) return;
      send(connection,
           std::string(store::kServerGreeting) +
               connection.handshake.challenge(std::string_view(in).substr(greeting.size())));
      connection.step = Connection::Step::proof;
    } else {
      if (connection.still_to_come() > 0) return;
      if (!connection.handshake.admits(in)) return refuse(connection);
      connection.step = Connection::Step::admitted;
    }
    in.clear();
  }

  // Handles every complete request in the input.
  void digest(Connection& connection) {
    if (connection.is_stranger()) return greet(connection);
    std::string& in = connection.in;
    std::size_t used = 0;
    while (!connection.closed && in.size() - used >= 4) {
      // One request at a time: a client that sends another one while waiting breaks the protocol.
      if (!connection.waits_for.empty()) return refuse(connection);
      const auto length = FieldReader(std::string_view(in).substr(used)).integer<std::uint32_t>();
      if (length == 0 || length > store::kMaxFrame) return refuse(connection);
      if (in.size() - used - 4 < length) break;
      if (!handle(connection, std::string_view(in).substr(used + 4, length)))
        return refuse(connection);
      used += 4 + std::size_t{length};
    }
    in.erase(0, used);
  }

  // Returns false if the frame is not a valid request.
  bool handle(Connection& connection, std::string_view frame) {
    FieldReader fields(frame);
    const auto operation = static_cast<Operation>(fields.integer<std::uint8_t>());
    const std::string key(fields.string());
    if (key.empty() || key.size() > kMaxStoreKey) return false;
    const auto found = values_.find(key);
    switch (operation) {
      case Operation::set: {
        const std::string_view value = fields.string();
        if (!fields.finished() || value.size() > kMaxStoreValue) return false;
        assign(connection, key, value);
        return true;
      }
      case Operation::try_get:
      case Operation::get:
        if (!fields.finished()) return false;
        if (found != values_.end())
          send(connection, answer(Status::ok, found->second));
        else if (operation == Operation::try_get)
          send(connection, answer(Status::none));
        else
          connection.waits_for = key;
        return true;
      case Operation::add: {
        const auto amount = fields.integer<std::int64_t>();
        if (!fields.finished()) return false;
        try {
          const std::string sum = std::to_string(store::add_to_counter(
              key, found == values_.end() ? std::string_view() : found->second, amount));
          assign(connection, key, sum, sum);
        } catch (const Error& problem) {
          send(connection, answer(Status::not_a_counter, problem.what()));
        }
        return true;
      }
      case Operation::compare_set: {
        const bool expects_value = fields.integer<std::uint8_t>() != 0;
        const std::string_view expected = fields.string(), desired = fields.string();
        if (!fields.finished() || desired.size() > kMaxStoreValue) return false;
        const bool equal =
            found == values_.end() ? !expects_value : expects_value && found->second == expected;
        if (equal)
          assign(connection, key, desired);
        else
          send(connection, answer(Status::none));
        return true;
      }
      case Operation::remove:
        if (!fields.finished()) return false;
        send(connection, answer(found == values_.end() ? Status::none : Status::ok));
        if (found != values_.end()) {
          stored_ -= key.size() + found->second.size();
          values_.erase(found);
        }
        return true;
    }
    return false;
  }

  void assign(Connection& connection, const std::string& key, std::string_view value,
              std::string_view reply = {}) {
    const auto found = values_.find(key);
    const std::size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
    const std::size_t after = stored_ - before + key.size() + value.size();
    if (after > kMaxStoredBytes) return send(connection, answer(Status::full));
    stored_ = after;
    values_.insert_or_assign(key, std::string(value));
    send(connection, answer(Status::ok, reply));
    for (Connection& other : connections_)
      if (other.waits_for == key) {
        other.waits_for.clear();
        send(other, answer(Status::ok, value));
      }
  }

  void send(Connection& connection, const std::string& bytes) {
    connection.out += bytes;
    flush(connection);
  }

  void flush(Connection& connection) {
    while (!connection.closed && connection.sent < connection.out.size()) {
      const ssize_t count = ::send(connection.fd, connection.out.data() + connection.sent,
                                   connection.out.size() - connection.sent, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        // A client that sends requests and never reads must not pile up answers here.
        if (connection.out.size() - connection.sent > 2 * store::kMaxFrame) refuse(connection);
        return;
      }
      if (count < 0) {
        connection.closed = true;
        return;
      }
      connection.sent += static_cast<std::size_t>(count);
    }
    connection.out.clear();
    connection.sent = 0;
  }

  const JobToken token_;
  std::vector<int> listeners_;
  int wake_ = -1, port_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int> connected_{0};
  std::atomic<int> refused_{0};
  Clock::time_point accept_again_ = Clock::now();
  std::list<Connection> connections_;
  std::map<std::string, std::string, std::less<>> values_;
  std::size_t stored_ = 0;
  std::thread thread_;
};

TcpStoreServer::TcpStoreServer(int port, const std::string& bind_address, const JobToken& token)
    : impl_(std::make_unique<Impl>(port, bind_address, token)) {}
TcpStoreServer::~TcpStoreServer() = default;

bool TcpStoreServer::wait_for_clients_to_leave(Deadline deadline) const {
  while (impl_->connected() > 0) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}
int TcpStoreServer::port() const { return impl_->port(); }
int TcpStoreServer::refused_connections() const { return impl_->refused(); }

}  // namespace shoal
