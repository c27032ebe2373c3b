#include "shoal/collectives/transport/control_connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::transport::control {
namespace {

struct Header {
  std::uint32_t magic = 0x53484f41;  // rejects strangers; both ends run the same build
  Kind kind = Kind::heartbeat;
  std::int32_t rank = -1;
  std::uint32_t code = 0;
  std::uint32_t length = 0;  // of the text that follows
};

// Parses an address such as "10.0.0.7" or "2001:db8::7" and adds the port. Returns the length of
// `parsed`, or 0 if `text` is no address.
socklen_t parse(const std::string& text, int port, sockaddr_storage& parsed) {
  parsed = {};
  auto& four = reinterpret_cast<sockaddr_in&>(parsed);
  if (inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<std::uint16_t>(port));
    return sizeof four;
  }
  auto& six = reinterpret_cast<sockaddr_in6&>(parsed);
  if (inet_pton(AF_INET6, text.c_str(), &six.sin6_addr) != 1) return 0;
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<std::uint16_t>(port));
  return sizeof six;
}

// Returns an interface's address, or an empty text if peers cannot use it. They cannot use a
// link-local address: it needs a scope, whose name differs between hosts.
std::string usable(const ifaddrs& entry) {
  if (!entry.ifa_addr || !(entry.ifa_flags & IFF_UP) || (entry.ifa_flags & IFF_LOOPBACK)) return {};
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = entry.ifa_addr->sa_family;
  if (family == AF_INET) {
    sockaddr_in address{};
    std::memcpy(&address, entry.ifa_addr, sizeof address);
    (void)inet_ntop(family, &address.sin_addr, text.data(), text.size());
  } else if (family == AF_INET6) {
    sockaddr_in6 address{};
    std::memcpy(&address, entry.ifa_addr, sizeof address);
    if (!IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr))
      (void)inet_ntop(family, &address.sin6_addr, text.data(), text.size());
  }
  return text.data();
}

// Listens on all addresses. On failure returns an empty descriptor and sets errno.
FileDescriptor listen_on(int family, int backlog) {
  FileDescriptor fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage any{};  // the wildcard address of either family
  any.ss_family = static_cast<sa_family_t>(family);
  const int off = 0;
  if (!fd ||
      (family == AF_INET6 &&
       setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) ||
      bind(fd.get(), reinterpret_cast<sockaddr*>(&any),
           family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)) != 0 ||
      listen(fd.get(), backlog) != 0)
    return {};
  return fd;
}

}  // namespace

std::string Message::bytes() const {
  Header header;
  header.kind = kind;
  header.rank = rank;
  header.code = code;
  header.length = static_cast<std::uint32_t>(std::min(text.size(), kMostText));
  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  return out.append(text, 0, header.length);
}

void Connection::flush() {
  while (fd && !out.empty()) {
    const ssize_t n = ::send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    out.erase(0, static_cast<std::size_t>(n));
  }
}

void Connection::look(double most) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  const double since = std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv) * 1e-3;
  out_of_reach = std::min(since, out_of_reach + most);
}

bool Connection::split(std::deque<Message>& messages) {
  Header header;
  while (in.size() >= sizeof header) {
    std::memcpy(&header, in.data(), sizeof header);
    if (header.magic != Header{}.magic || header.length > kMostText) return false;
    if (in.size() < sizeof header + header.length) break;
    messages.push_back(
        {header.kind, header.rank, in.substr(sizeof header, header.length), header.code});
    in.erase(0, sizeof header + header.length);
  }
  return true;
}

bool Connection::receive(std::deque<Message>& messages, std::size_t most) {
  std::array<char, 4096> chunk;
  if (!split(messages)) return false;  // messages that await() left in `in`
  while (most > 0) {
    const ssize_t n = ::recv(fd.get(), chunk.data(), std::min(most, chunk.size()), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n < 0) unreachable = errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH;
    if (n <= 0) return false;
    most -= static_cast<std::size_t>(n);
    in.append(chunk.data(), static_cast<std::size_t>(n));
    heard = Clock::now();
    if (!split(messages)) return false;
  }
  return true;
}

void send(Connection& connection, const Message& message) {
  if (!connection.fd) return;
  connection.out += message.bytes();
  connection.flush();
}

bool await(Connection& connection, Message& message, Deadline deadline) {
  std::deque<Message> messages;
  for (;;) {
    const bool alive = connection.receive(messages);
    if (!messages.empty()) {
      message = messages.front();
      std::string rest;  // kept for the next call
      for (auto later = messages.begin() + 1; later != messages.end(); ++later)
        rest += later->bytes();
      connection.in.insert(0, rest);
      return true;
    }
    if (!alive || deadline.passed()) return false;
    pollfd entry{connection.fd.get(), POLLIN, 0};
    (void)poll(&entry, 1, static_cast<int>(std::clamp(deadline.seconds_left() * 1000, 1.0, 100.0)));
  }
}

void prepare(int fd) {
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

FileDescriptor listen_anywhere(int backlog, int& port) {
  FileDescriptor fd = listen_on(AF_INET6, backlog);
  if (!fd) fd = listen_on(AF_INET, backlog);
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (!fd || getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw_error(ErrorCode::io, "cannot listen for control connections: {}", std::strerror(errno));
  port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
  return fd;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* entry = list; entry; entry = entry->ifa_next)
      if (std::string address = usable(*entry); !address.empty())
        addresses.push_back(std::move(address));
    freeifaddrs(list);
  }
  std::ranges::stable_partition(
      addresses, [](const std::string& address) { return address.find(':') == std::string::npos; });
  addresses.insert(addresses.end(), {"127.0.0.1", "::1"});
  return addresses;
}

bool is_address(const std::string& text) {
  sockaddr_storage parsed{};
  return parse(text, 0, parsed) != 0;
}

FileDescriptor connect_to(const std::string& address, int port, Deadline deadline,
                          std::string* why) {
  const auto failed = [why](const char* reason) -> FileDescriptor {
    if (why) *why = reason;
    return {};
  };
  sockaddr_storage parsed{};
  const socklen_t length = parse(address, port, parsed);
  if (length == 0) return failed("no address");
  FileDescriptor fd(socket(parsed.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed(std::strerror(errno));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&parsed), length) != 0) {
    if (errno != EINPROGRESS) return failed(std::strerror(errno));
    pollfd entry{fd.get(), POLLOUT, 0};
    const double seconds = std::min(deadlines::kHubConnectAttempt, deadline.seconds_left());
    if (poll(&entry, 1, static_cast<int>(std::max(seconds, 0.0) * 1000)) <= 0)
      return failed("no answer");
    int problem = 0;
    socklen_t size = sizeof problem;
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &problem, &size) != 0) problem = errno;
    if (problem != 0) return failed(std::strerror(problem));
  }
  prepare(fd.get());
  return fd;
}

}  // namespace shoal::collectives::transport::control
