#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/rendezvous/host_lists.h"
#include "shoal/runtime/rendezvous/store_internal.h"
#include "shoal/runtime/rendezvous/tcp_protocol.h"
#include "shoal/runtime/rendezvous/tcp_server.h"

namespace shoal {
namespace {

using store::Operation;
using store::Status;

struct TimedOut {};  // internal: a caller that knows what the wait was for turns it into an Error

// A non-blocking socket with deadlines. Throws TimedOut, or Error peer_lost.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

  // Returns false if the deadline passed.
  bool ready(short events, Deadline deadline) const {
    for (;;) {
      pollfd polled{fd_, events, 0};
      const double left = deadline.seconds_left();
      const int wait_ms = static_cast<int>(std::clamp(left, 0.0, 1000.0) * 1000) + (left > 0);
      const int count = ::poll(&polled, 1, wait_ms);
      if (count > 0) return true;
      if (count < 0 && errno != EINTR)
        throw_error(ErrorCode::io, "tcp store: poll: {}", std::strerror(errno));
      if (deadline.passed()) return false;
    }
  }

  void send_all(std::string_view bytes, Deadline deadline) const {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(count));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        if (!ready(POLLOUT, deadline)) throw TimedOut{};
      } else if (errno != EINTR) {
        throw Error(ErrorCode::peer_lost, std::strerror(errno));
      }
    }
  }

  std::string receive_exactly(std::size_t bytes, Deadline deadline) const {
    std::string text;
    std::array<char, 65536> block;
    while (text.size() < bytes) {
      const ssize_t count =
          ::recv(fd_, block.data(), std::min(block.size(), bytes - text.size()), 0);
      if (count > 0) {
        text.append(block.data(), static_cast<std::size_t>(count));
      } else if (count == 0) {
        throw Error(ErrorCode::peer_lost, "the server closed the connection");
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        if (!ready(POLLIN, deadline)) throw TimedOut{};
      } else if (errno != EINTR) {
        throw Error(ErrorCode::peer_lost, std::strerror(errno));
      }
    }
    return text;
  }

 private:
  int fd_ = -1;
};

// Why an address has not been reached.
struct Unreached {
  std::string why = "no attempt was made";
  bool refused = false;  // no process listens there
};

// A client shows these to the server on each of its connections.
struct Credentials {
  const JobToken token;
  const int rank;
};

// Returns an empty text once the server has shown that it has the job's token, or the reason.
std::string why_not_met(const Socket& socket, const Credentials& credentials, Deadline deadline) {
  const handshake::Client client(credentials.token, store::kPurpose, credentials.rank);
  socket.send_all(std::string(store::kClientGreeting) + client.hello(), deadline);
  if (socket.receive_exactly(store::kServerGreeting.size(), deadline) != store::kServerGreeting)
    return "something answers there that is not a Shoal store";
  const auto proof = client.answer(socket.receive_exactly(handshake::kChallenge, deadline));
  if (!proof)
    return "the store there has another job token: SHOAL_JOB_TOKEN_FILE must hold the same on "
           "every host";
  socket.send_all(*proof, deadline);
  return {};
}

// Tries one address once. If the result is empty, `unreached` holds the reason.
std::optional<Socket> try_connect(const addrinfo& address, const Credentials& credentials,
                                  Deadline deadline, Unreached& unreached) {
  std::string& why = unreached.why;
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) {
    why = std::strerror(errno);
    return std::nullopt;
  }
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    int error = errno;
    if (error == EINPROGRESS) {
      if (!socket.ready(POLLOUT, deadline)) {
        why = "no answer";
        return std::nullopt;
      }
      socklen_t length = sizeof error;
      if (::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    }
    if (error != 0) {
      why = std::strerror(error);
      unreached.refused |= error == ECONNREFUSED;
      return std::nullopt;
    }
  }
  const int yes = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  try {
    why = why_not_met(socket, credentials, deadline);
    if (why.empty()) return socket;
  } catch (const TimedOut&) {
    why = "connected, but got no greeting of a Shoal store";
  } catch (const Error& problem) {
    why = problem.message();
  }
  return std::nullopt;
}

// `served`: the server was reached before, so a refused connection means that it has ended.
// Otherwise it may not have started yet.
Socket connect_until(const std::vector<std::string>& hosts, int port,
                     const Credentials& credentials, Deadline deadline, bool served = false) {
  const auto start = Clock::now();
  auto pause = std::chrono::milliseconds(10);
  Unreached unreached;
  for (;;) {
    for (const std::string& host : hosts) {
      addrinfo hints{}, *found = nullptr;
      hints.ai_socktype = SOCK_STREAM;
      hints.ai_family = AF_UNSPEC;
      // In a cluster, a name may not resolve until its host has started.
      const int problem = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      if (problem != 0) {
        unreached.why = ::gai_strerror(problem);
        continue;
      }
      std::optional<Socket> socket;
      for (const addrinfo* a = found; a && !socket; a = a->ai_next) {
        const double attempt =
            std::clamp(deadline.seconds_left(), deadlines::kShortestConnectAttempt,
                       deadlines::kConnectAttempt);
        socket = try_connect(*a, credentials, Deadline::in_seconds(attempt), unreached);
      }
      ::freeaddrinfo(found);
      if (socket) return *std::move(socket);
    }
    if (served && unreached.refused) throw Error(ErrorCode::peer_lost, unreached.why);
    if (deadline.passed())
      throw Error(
          ErrorCode::timeout,
          fmt::format("no Shoal store at {}:{} within {:.1f} s ({})", hosts.front(), port,
                      seconds_since(start), unreached.why),
          fmt::format("rank 0 serves it: see that it runs on that host and that MASTER_ADDR "
                      "and MASTER_PORT are its address{}",
                      is_loopback(hosts.back())
                          ? "; each container has a loopback of its own, unless all share "
                            "one network (`--network host`)"
                          : ""));
    std::this_thread::sleep_until(std::min(deadline.time(), Clock::now() + pause));
    pause = std::min(2 * pause, std::chrono::milliseconds(500));
  }
}

class TcpStore final : public Store {
 public:
  // `hosts`: names or addresses to try, the one to show last.
  TcpStore(std::vector<std::string> hosts, int port, Credentials credentials,
           std::unique_ptr<TcpStoreServer> server, Deadline deadline)
      : server_(std::move(server)),
        hosts_(std::move(hosts)),
        credentials_(std::move(credentials)),
        port_(server_ ? server_->port() : port),
        shown_(hosts_.back().find(':') == std::string::npos
                   ? fmt::format("{}:{}", hosts_.back(), port_)
                   : fmt::format("[{}]:{}", hosts_.back(), port_)) {
    idle_.push_back(connect_until(hosts_, port_, credentials_, deadline));
  }
  // The serving rank often leaves the last barrier first, before other ranks have received their
  // answers. It waits for them, but less long if an Error unwinds the stack: the others meet the
  // same error about now, and ask the store who is to blame.
  ~TcpStore() override {
    idle_.clear();
    if (!server_) return;
    const bool failed = std::uncaught_exceptions() > 0;
    server_->wait_for_clients_to_leave(
        Deadline::in_seconds(failed ? deadlines::kStoreLastWords : deadlines::kStoreCourtesy));
  }

  void set(std::string_view key, std::string_view value) override {
    store::check_key(key);
    store::check_value(key, value);
    std::string request = begin(Operation::set, key);
    store::put_string(request, value);
    (void)ask(request, key);
  }

  std::optional<std::string> try_get(std::string_view key) override {
    store::check_key(key);
    return ask(begin(Operation::try_get, key), key);
  }

  std::string get(std::string_view key, Deadline deadline) override {
    store::check_key(key);
    const auto start = Clock::now();
    // Without time left, the call still returns a value that is present.
    if (deadline.seconds_left() < 0.01) {
      if (auto value = try_get(key)) return *std::move(value);
      store::throw_missing_key(key, name(), seconds_since(start));
    }
    try {
      return exchange_frames(begin(Operation::get, key), key, deadline).value_or("");
    } catch (const TimedOut&) {
      expect_silence();
      store::throw_missing_key(key, name(), seconds_since(start));
    }
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    store::check_key(key);
    std::string request = begin(Operation::add, key);
    store::put_integer(request, amount);
    return store::add_to_counter(key, ask(request, key).value_or(""), 0);
  }

  bool compare_set(std::string_view key, const std::optional<std::string>& expected,
                   std::string_view desired) override {
    store::check_key(key);
    store::check_value(key, desired);
    if (expected && expected->size() > kMaxStoreValue) return false;
    std::string request = begin(Operation::compare_set, key);
    request += static_cast<char>(expected.has_value());
    store::put_string(request, expected.value_or(""));
    store::put_string(request, desired);
    return ask(request, key).has_value();
  }

  bool remove(std::string_view key) override {
    store::check_key(key);
    return ask(begin(Operation::remove, key), key).has_value();
  }

  std::string name() const override { return "tcp store at " + shown_; }

 private:
  static std::string begin(Operation operation, std::string_view key) {
    std::string request(1, static_cast<char>(operation));
    store::put_string(request, key);
    return request;
  }

  std::optional<std::string> ask(const std::string& request, std::string_view key) {
    try {
      return exchange_frames(request, key, Deadline::in_seconds(answer_seconds_));
    } catch (const TimedOut&) {
      const double waited = answer_seconds_.load();
      expect_silence();
      throw Error(ErrorCode::timeout,
                  fmt::format("the {} did not answer for key '{}' within {:.0f} s", name(),
                              store::printable(key), waited),
                  "rank 0's host is unreachable or overloaded");
    }
  }

  // After a wait that took its whole time: the server may be stopped or out of reach.
  void expect_silence() { answer_seconds_ = std::min(patience_, deadlines::kSilentStore); }

  // Returns nullopt for Status::none. A failed or abandoned connection is closed, not reused.
  std::optional<std::string> exchange_frames(const std::string& request, std::string_view key,
                                             Deadline deadline) {
    try {
      Socket socket = take_connection(deadline);
      std::string frame;
      store::put_integer(frame, static_cast<std::uint32_t>(request.size()));
      frame += request;
      socket.send_all(frame, deadline);
      const auto length =
          store::FieldReader(socket.receive_exactly(4, deadline)).integer<std::uint32_t>();
      if (length == 0 || length > store::kMaxFrame)
        throw_error(ErrorCode::corrupt_data, "the {} sent a frame of {} bytes", name(), length);
      std::string reply = socket.receive_exactly(length, deadline);
      answer_seconds_ = patience_;
      {
        const std::scoped_lock lock(mutex_);
        idle_.push_back(std::move(socket));
      }
      const auto status = static_cast<Status>(reply[0]);
      reply.erase(0, 1);
      if (status == Status::ok) return reply;
      if (status == Status::none) return std::nullopt;
      if (status == Status::full)
        throw_error(ErrorCode::out_of_memory, "the {} is full and did not take key '{}'", name(),
                    store::printable(key));
      throw_error(ErrorCode::corrupt_data, "{}", reply);
    } catch (const Error& problem) {
      if (problem.code() != ErrorCode::peer_lost) throw;
      throw Error(
          ErrorCode::peer_lost,
          fmt::format("lost the {} while asking for key '{}': {}", name(), store::printable(key),
                      problem.message()),
          "rank 0, which serves it, has ended, is stopped or out of reach: look at its log");
    }
  }

  Socket take_connection(Deadline deadline) {
    {
      const std::scoped_lock lock(mutex_);
      if (!idle_.empty()) {
        Socket socket = std::move(idle_.back());
        idle_.pop_back();
        return socket;
      }
    }
    try {
      return connect_until(
          hosts_, port_, credentials_,
          Deadline::in_seconds(std::min(deadlines::kConnectAttempt, deadline.seconds_left())),
          /*served=*/true);
    } catch (const Error& problem) {
      throw Error(ErrorCode::peer_lost, problem.message());
    }
  }

  std::unique_ptr<TcpStoreServer> server_;
  const std::vector<std::string> hosts_;
  const Credentials credentials_;
  int port_;
  std::string shown_;
  const double patience_ = deadlines::seconds();
  std::atomic<double> answer_seconds_ = patience_;
  std::mutex mutex_;
  std::vector<Socket> idle_;
};

std::string here(int rank) { return fmt::format("__shoal/here/{}", rank); }

// "rank 1", "ranks 1, 2"; empty if the ranks did not give their numbers.
std::string missing_ranks(Store& store, int world_size) {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank)
    if (!store.try_get(here(rank))) missing.push_back(rank);
  if (std::ssize(missing) == world_size || missing.empty()) return {};
  return fmt::format("; missing: rank{} {}", missing.size() == 1 ? "" : "s",
                     fmt::join(missing, ", "));
}

void wait_for_all(Store& store, int world_size, int rank, Deadline deadline) {
  const auto start = Clock::now();
  const std::string joined = "__shoal/joined";
  // Its value is empty once all have joined. Else it says why the ranks gave up, so that those
  // whose deadline is later learn it before the server ends.
  const std::string complete = "__shoal/all_joined";
  // Counted first: a rank that dies in between is named as missing, or by the next step.
  const std::int64_t count = store.add(joined, 1);
  if (rank >= 0) store.set(here(rank), "");
  if (count > world_size)
    throw Error(
        ErrorCode::mismatch,
        fmt::format("{} ranks joined the {}, which is for {}", count, store.name(), world_size),
        "another job may use the same MASTER_ADDR and MASTER_PORT");
  if (count == world_size) store.compare_set(complete, std::nullopt, "");
  std::string problem;
  try {
    problem = store.get(complete, deadline);
  } catch (const Error& late) {
    if (late.code() != ErrorCode::timeout) throw;
    problem = fmt::format("{} of {} ranks joined the {} within {:.1f} s{}",
                          store.try_get(joined).value_or("0"), world_size, store.name(),
                          seconds_since(start), missing_ranks(store, world_size));
    if (!store.compare_set(complete, std::nullopt, problem))
      problem = store.get(complete, deadlines::at_once());
  }
  if (!problem.empty())
    throw Error(ErrorCode::timeout, problem,
                "look at the logs of the other ranks; do all hosts reach MASTER_ADDR?");
}

}  // namespace

std::shared_ptr<Store> make_tcp_store(const std::string& host, int port, bool is_server,
                                      int world_size, Deadline deadline, int rank,
                                      const JobToken& token) {
  std::string name = host;
  if (name.size() > 2 && name.front() == '[' && name.back() == ']')
    name = name.substr(1, name.size() - 2);
  SHOAL_CHECK(!name.empty(), "the tcp store needs the host of rank 0 (MASTER_ADDR)");
  SHOAL_CHECK(port <= 65535 && port >= (is_server ? 0 : 1),
              "the tcp store needs a port from 1 to 65535 (MASTER_PORT), not {}", port);
  std::unique_ptr<TcpStoreServer> server;
  std::vector<std::string> hosts{name};
  if (is_server && (is_loopback(name) || is_own_on_network(name))) {
    server = std::make_unique<TcpStoreServer>(port, name, token);
  } else if (is_server) {
    // The name is that of a forwarder in front of this host, or this host resolves it to its
    // loopback, where other hosts do not reach it.
    log::info("rank 0 serves the store on every address: {} is none of this host's own", name);
    server = std::make_unique<TcpStoreServer>(port, std::string(), token);
    hosts.insert(hosts.begin(), {"127.0.0.1", "::1"});
  }
  auto store = std::make_shared<TcpStore>(std::move(hosts), port, Credentials{token, rank},
                                          std::move(server), deadline);
  if (world_size > 0) wait_for_all(*store, world_size, rank, deadline);
  return store;
}

}  // namespace shoal
