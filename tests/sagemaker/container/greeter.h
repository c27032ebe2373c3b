// A server that listens on its own port and sends a greeting, as sshd does.
#pragma once

#include <string>
#include <thread>
#include <utility>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace shoal::sagemaker {

// Greets each client until it is destroyed.
class Greeter {
 public:
  explicit Greeter(std::string greeting) : greeting_(std::move(greeting)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_, 8);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (int guest; (guest = ::accept(listener_, nullptr, nullptr)) >= 0; ::close(guest))
        static_cast<void>(::write(guest, greeting_.data(), greeting_.size()));
    });
  }
  ~Greeter() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  Greeter(const Greeter&) = delete;
  Greeter& operator=(const Greeter&) = delete;
  int port() const { return port_; }

 private:
  std::string greeting_;
  int listener_ = -1, port_ = 0;
  std::thread thread_;
};

}  // namespace shoal::sagemaker
