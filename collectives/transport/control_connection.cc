#include "shoal/collectives/transport/control_connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace shoal::collectives::control {
namespace {

struct Header {
  std::uint32_t magic = 0x53484f41;  // both ends run the same build on the same kind of machine
  Kind kind = Kind::heartbeat;
  std::int32_t rank = -1;
  std::uint32_t code = 0;
  std::uint32_t length = 0;  // of the text that follows
};

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

bool Connection::receive(std::deque<Message>& messages) {
  std::array<char, 4096> chunk;
  for (;;) {
    const ssize_t n = ::recv(fd.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n < 0) unreachable = errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH;
    if (n <= 0) return false;
    in.append(chunk.data(), static_cast<std::size_t>(n));
    heard = Clock::now();
    Header header;
    while (in.size() >= sizeof header) {
      std::memcpy(&header, in.data(), sizeof header);
      if (header.magic != Header{}.magic || header.length > kMostText) return false;
      if (in.size() < sizeof header + header.length) break;
      messages.push_back(
          {header.kind, header.rank, in.substr(sizeof header, header.length), header.code});
      in.erase(0, sizeof header + header.length);
    }
  }
}

bool await(Connection& connection, Message& message, Deadline deadline) {
  std::deque<Message> messages;
  for (;;) {
    const bool alive = connection.receive(messages);
    if (!messages.empty()) {
      message = messages.front();
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

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
      if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_INET ||
          !(entry->ifa_flags & IFF_UP) || (entry->ifa_flags & IFF_LOOPBACK))
        continue;
      sockaddr_in address{};
      std::memcpy(&address, entry->ifa_addr, sizeof address);
      std::array<char, INET_ADDRSTRLEN> text{};
      if (inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size()))
        addresses.emplace_back(text.data());
    }
    freeifaddrs(list);
  }
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

FileDescriptor connect_to(const std::string& host, int port, Deadline deadline) {
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (!fd || inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return {};
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    if (errno != EINPROGRESS) return {};
    pollfd entry{fd.get(), POLLOUT, 0};
    const double seconds = std::min(2.0, deadline.seconds_left());
    if (poll(&entry, 1, static_cast<int>(std::max(seconds, 0.0) * 1000)) <= 0) return {};
    int problem = 0;
    socklen_t length = sizeof problem;
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &problem, &length) != 0 || problem != 0)
      return {};
  }
  prepare(fd.get());
  return fd;
}

}  // namespace shoal::collectives::control
