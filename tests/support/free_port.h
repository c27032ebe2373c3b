// Finds a port for a server that a test starts in another process, where port 0 cannot be used.
#pragma once

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace shoal::testing {

// Returns the first of `count` consecutive ports on which a server can listen on 127.0.0.1. No
// other test gets them before this process ends: for each port an open socket holds a name that is
// unique on this host. The ports lie below the kernel's ephemeral range, because a client's port
// stays taken for a minute after its connection, and the suite opens thousands.
inline int free_ports(int count) {
  int first_ephemeral = 32768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_ephemeral;
  constexpr int kLowest = 10240;
  const int end = std::max(first_ephemeral, kLowest + 4096);
  const auto socket_of = [](int family) { return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0); };
  const auto claims = [&](int port, int& held) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string text = "shoal-test-port-" + std::to_string(port);
    std::copy(text.begin(), text.end(), name.sun_path + 1);  // abstract: creates no file
    held = socket_of(AF_UNIX);
    if (::bind(held, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) return false;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<in_port_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    const int server = socket_of(AF_INET), reuse = 1;
    ::setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
    const bool free =
        ::bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
        ::listen(server, 1) == 0;
    ::close(server);
    return free;
  };
  const int span = end - kLowest, start = static_cast<int>(::getpid()) * 61 % span;
  for (int tried = 0; tried < span; ++tried) {
    const int first = kLowest + (start + tried) % span;
    if (first + count > end) continue;
    std::vector<int> held;
    bool all = true;
    for (int i = 0; all && i < count; ++i) all = claims(first + i, held.emplace_back(-1));
    if (all) return first;  // the sockets stay open
    for (const int one : held) ::close(one);
  }
  throw std::runtime_error("no port is free from 10240 to " + std::to_string(end));
}

inline int free_port() { return free_ports(1); }

}  // namespace shoal::testing
