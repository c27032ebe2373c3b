// Sockets of fibers. Definitions in the executable take precedence over the C library's, for shared
// libraries too. Threads that are no fibers, and descriptors of real files, get the C library's.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "support/simulation/network.h"
#include "support/simulation/real_call.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace shoal::simulation {
namespace {

constexpr const char* kInterface = "eth0";

bool is_simulated(int fd) { return running() != nullptr && fd >= Network::kFirstDescriptor; }

// Returns `result`, or -1 and sets errno for a negative one.
template <typename Result>
Result answer(Result result) {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

Place place_of(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, address, sizeof four);
    return {ntohl(four.sin_addr.s_addr), ntohs(four.sin_port)};
  }
  sockaddr_in6 six{};
  std::memcpy(&six, address, sizeof six);
  Place place{0, ntohs(six.sin6_port)};
  if (IN6_IS_ADDR_LOOPBACK(&six.sin6_addr)) place.address = INADDR_LOOPBACK;
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
    std::memcpy(&place.address, six.sin6_addr.s6_addr + 12, 4);
    place.address = ntohl(place.address);
  }
  return place;
}

sockaddr_in address_of(Place place) {
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_addr.s_addr = htonl(place.address);
  four.sin_port = htons(place.port);
  return four;
}

void give(const sockaddr_in& address, sockaddr* to, socklen_t* length) {
  if (to == nullptr) return;
  std::memcpy(to, &address, std::min<std::size_t>(*length, sizeof address));
  *length = sizeof address;
}

int open_socket(int family, int type) {
  if (family != AF_INET && family != AF_INET6) return answer(-EAFNOSUPPORT);
  Process& owner = *running()->process;
  if ((type & 0xf) == SOCK_DGRAM)
    return network().add(std::make_shared<Datagrams>(network(), owner));
  return network().add(std::make_shared<Stream>(network(), owner));
}

int wait_for(pollfd* entries, nfds_t count, Time limit) {
  for (;;) {
    int found = 0;
    for (nfds_t i = 0; i < count; ++i) {
      entries[i].revents = 0;
      if (entries[i].fd < 0) continue;
      const auto descriptor = network().find(entries[i].fd);
      entries[i].revents =
          descriptor
              ? static_cast<short>(descriptor->ready() & (entries[i].events | POLLERR | POLLHUP))
              : static_cast<short>(POLLNVAL);
      found += entries[i].revents != 0;
    }
    if (found > 0 || scheduler().now() >= limit) return found;
    scheduler().wait_for_activity(limit);
  }
}

long send_to(int fd, const void* data, std::size_t bytes, const sockaddr* to) {
  const std::string_view text(static_cast<const char*>(data), bytes);
  if (const auto stream = network().find_as<Stream>(fd)) return stream->send(text);
  const auto datagrams = network().find_as<Datagrams>(fd);
  if (!datagrams || to == nullptr) return -EBADF;
  datagrams->send(place_of(to), text);
  return static_cast<long>(bytes);
}

long receive_from(int fd, void* data, std::size_t most, int flags) {
  if (const auto stream = network().find_as<Stream>(fd))
    return stream->receive(static_cast<char*>(data), most, (flags & MSG_PEEK) != 0);
  return -EBADF;
}

int set_option(int level, int name, void* value, socklen_t* length, Stream& stream) {
  if (level == SOL_SOCKET && name == SO_ERROR) {
    const int error = stream.take_error();
    std::memcpy(value, &error, sizeof error);
    return 0;
  }
  if (level != IPPROTO_TCP || name != TCP_INFO) return -ENOPROTOOPT;
  tcp_info info{};
  const auto milliseconds = [](double seconds) {
    return static_cast<std::uint32_t>(seconds * 1000);
  };
  info.tcpi_last_ack_recv = milliseconds(stream.seconds_since_acknowledged());
  info.tcpi_last_data_recv = milliseconds(stream.seconds_since_data());
  std::memcpy(value, &info, std::min<std::size_t>(*length, sizeof info));
  return 0;
}

// One interface of a list that getifaddrs() gives.
struct Interface {
  ifaddrs entry{};
  sockaddr_in address{};
  std::string name;
};

// Numeric addresses only: the simulated network has no names.
struct Found {
  addrinfo entry{};
  sockaddr_in address{};
};

}  // namespace
}  // namespace shoal::simulation

using namespace shoal::simulation;  // NOLINT(google-build-using-namespace)

extern "C" {

int socket(int family, int type, int protocol) noexcept {
  SHOAL_REAL_CALL(socket);
  return running() ? open_socket(family, type) : next(family, type, protocol);
}

int bind(int fd, const struct sockaddr* address, socklen_t length) noexcept {
  SHOAL_REAL_CALL(bind);
  if (!is_simulated(fd)) return next(fd, address, length);
  const auto descriptor = network().find(fd);
  Place place = place_of(address);
  if (place.address != 0 &&
      network().host_at(place.address, running()->process->host) != running()->process->host)
    return answer(-EADDRNOTAVAIL);
  return network().bind(descriptor, place) ? 0 : answer(-EADDRINUSE);
}

int listen(int fd, int backlog) noexcept {
  SHOAL_REAL_CALL(listen);
  if (!is_simulated(fd)) return next(fd, backlog);
  return network().find_as<Stream>(fd)->listen();
}

int connect(int fd, const struct sockaddr* address, socklen_t length) {
  SHOAL_REAL_CALL(connect);
  if (!is_simulated(fd)) return next(fd, address, length);
  return answer(network().find_as<Stream>(fd)->connect(place_of(address)));
}

int accept4(int fd, struct sockaddr* address, socklen_t* length, int flags) {
  SHOAL_REAL_CALL(accept4);
  if (!is_simulated(fd)) return next(fd, address, length, flags);
  const auto guest = network().find_as<Stream>(fd)->accept(*running()->process);
  if (!guest) return answer(-EAGAIN);
  give(address_of(guest->there), address, length);
  return network().add(guest);
}

int getsockname(int fd, struct sockaddr* address, socklen_t* length) noexcept {
  SHOAL_REAL_CALL(getsockname);
  if (!is_simulated(fd)) return next(fd, address, length);
  const auto stream = network().find_as<Stream>(fd);
  give(address_of(stream ? stream->here : network().find_as<Datagrams>(fd)->here), address, length);
  return 0;
}

int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
  SHOAL_REAL_CALL(setsockopt);
  return is_simulated(fd) ? 0 : next(fd, level, name, value, length);
}

int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  SHOAL_REAL_CALL(getsockopt);
  if (!is_simulated(fd)) return next(fd, level, name, value, length);
  return answer(set_option(level, name, value, length, *network().find_as<Stream>(fd)));
}

ssize_t send(int fd, const void* data, std::size_t bytes, int flags) {
  SHOAL_REAL_CALL(send);
  return is_simulated(fd) ? answer(send_to(fd, data, bytes, nullptr))
                          : next(fd, data, bytes, flags);
}

ssize_t sendto(int fd, const void* data, std::size_t bytes, int flags, const struct sockaddr* to,
               socklen_t length) {
  SHOAL_REAL_CALL(sendto);
  return is_simulated(fd) ? answer(send_to(fd, data, bytes, to))
                          : next(fd, data, bytes, flags, to, length);
}

ssize_t recv(int fd, void* data, std::size_t most, int flags) {
  SHOAL_REAL_CALL(recv);
  return is_simulated(fd) ? answer(receive_from(fd, data, most, flags))
                          : next(fd, data, most, flags);
}

int recvmmsg(int fd, struct mmsghdr* messages, unsigned int most, int flags,
             struct timespec* limit) {
  SHOAL_REAL_CALL(recvmmsg);
  if (!is_simulated(fd)) return next(fd, messages, most, flags, limit);
  auto& arrived = network().find_as<Datagrams>(fd)->arrived;
  unsigned int count = 0;
  for (; count < most && !arrived.empty(); ++count) {
    const auto& [from, text] = arrived.front();
    const iovec& room = messages[count].msg_hdr.msg_iov[0];
    messages[count].msg_len = static_cast<unsigned int>(std::min(text.size(), room.iov_len));
    std::memcpy(room.iov_base, text.data(), messages[count].msg_len);
    arrived.pop_front();
  }
  return count > 0 ? static_cast<int>(count) : answer(-EAGAIN);
}

int poll(struct pollfd* entries, nfds_t count, int milliseconds) {
  SHOAL_REAL_CALL(poll);
  if (!running()) return next(entries, count, milliseconds);
  return wait_for(entries, count,
                  milliseconds < 0 ? kNever : scheduler().now() + milliseconds * kMillisecond);
}

int eventfd(unsigned int count, int flags) noexcept {
  SHOAL_REAL_CALL(eventfd);
  if (!running()) return next(count, flags);
  return network().add(std::make_shared<Counter>(network(), *running()->process));
}

ssize_t write(int fd, const void* data, std::size_t bytes) {
  SHOAL_REAL_CALL(write);
  if (!is_simulated(fd)) return next(fd, data, bytes);
  const auto counter = network().find_as<Counter>(fd);
  if (!counter) return answer(send_to(fd, data, bytes, nullptr));
  std::uint64_t number = 0;
  std::memcpy(&number, data, sizeof number);
  counter->add(number);
  return sizeof number;
}

ssize_t read(int fd, void* data, std::size_t most) {
  SHOAL_REAL_CALL(read);
  if (!is_simulated(fd)) return next(fd, data, most);
  const auto counter = network().find_as<Counter>(fd);
  if (!counter) return answer(receive_from(fd, data, most, 0));
  const std::uint64_t number = counter->take();
  if (number == 0) return answer(ssize_t{-EAGAIN});
  std::memcpy(data, &number, sizeof number);
  return sizeof number;
}

int close(int fd) {
  SHOAL_REAL_CALL(close);
  if (!is_simulated(fd)) return next(fd);
  return network().close(fd) ? 0 : answer(-EBADF);
}

int getifaddrs(struct ifaddrs** list) noexcept {
  SHOAL_REAL_CALL(getifaddrs);
  if (!running()) return next(list);
  auto* one = new Interface;
  one->name = kInterface;
  one->address = address_of({network().host(running()->process->host).address, 0});
  one->entry.ifa_name = one->name.data();
  one->entry.ifa_flags = IFF_UP;
  one->entry.ifa_addr = reinterpret_cast<sockaddr*>(&one->address);
  *list = &one->entry;
  return 0;
}

void freeifaddrs(struct ifaddrs* list) noexcept {
  SHOAL_REAL_CALL(freeifaddrs);
  if (!running()) return next(list);
  delete reinterpret_cast<Interface*>(list);
}

int getaddrinfo(const char* name, const char* service, const struct addrinfo* hints,
                struct addrinfo** found) {
  SHOAL_REAL_CALL(getaddrinfo);
  if (!running()) return next(name, service, hints, found);
  in_addr numeric{};
  if (name != nullptr && inet_pton(AF_INET, name, &numeric) != 1) return EAI_NONAME;
  auto* one = new Found;
  const auto port = static_cast<std::uint16_t>(service ? std::stoi(service) : 0);
  one->address = address_of({ntohl(numeric.s_addr), port});
  one->entry.ai_family = AF_INET;
  one->entry.ai_socktype = hints ? hints->ai_socktype : SOCK_STREAM;
  one->entry.ai_addrlen = sizeof one->address;
  one->entry.ai_addr = reinterpret_cast<sockaddr*>(&one->address);
  *found = &one->entry;
  return 0;
}

void freeaddrinfo(struct addrinfo* list) noexcept {
  SHOAL_REAL_CALL(freeaddrinfo);
  if (!running()) return next(list);
  delete reinterpret_cast<Found*>(list);
}

}  // extern "C"
