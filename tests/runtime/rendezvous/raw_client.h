// A client of the tcp store that sends arbitrary bytes, for tests of the server.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shoal/runtime/rendezvous/job_token.h"

namespace shoal::testing {

class RawClient {
 public:
  explicit RawClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    timeval limit{5, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~RawClient() { ::close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  void send(std::string_view bytes) const {
    (void)!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Returns fewer bytes if the server closes or sends nothing for 5 s.
  std::string receive(std::size_t bytes) const {
    std::string text(bytes, '\0');
    const ssize_t count = ::recv(fd_, text.data(), text.size(), MSG_WAITALL);
    text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return text;
  }
  // Sends the greeting and the hello, and returns the server's challenge.
  std::string challenge(std::string_view hello) const {
    send("SHOALST2");
    send(hello);
    const std::string answer = receive(8 + handshake::kChallenge);
    return answer.starts_with("SHOALOK2") ? answer.substr(8) : std::string();
  }
  // Runs the whole handshake. False if the server does not have the token.
  bool greet(const JobToken& token = {}) const {
    const handshake::Client client(token, "store", -1);
    const auto proof = client.answer(challenge(client.hello()));
    if (proof) send(*proof);
    return proof.has_value();
  }
  // Reads until the server closes (true), or sends nothing for 5 s (false).
  bool closed_by_server() const {
    char block[4096];
    for (;;) {
      const ssize_t count = ::recv(fd_, block, sizeof block, 0);
      if (count == 0) return true;
      if (count < 0) return errno == ECONNRESET;
    }
  }

 private:
  int fd_;
  bool connected_ = false;
};

inline std::string u32(std::uint32_t value) {
  std::string text;
  for (int i = 0; i < 4; ++i) text += static_cast<char>((value >> (8 * i)) & 0xff);
  return text;
}

}  // namespace shoal::testing
