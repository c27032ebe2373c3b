#include "support/loopback_listener.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace shoal::test {

struct LoopbackListener::State {
  std::function<void(int)> serve;
  int listener = -1, port = 0;
  std::atomic<int> accepted{0};
  std::mutex mutex;
  bool stopping = false;
  std::set<int> open;
  std::vector<std::thread> threads;
  std::thread acceptor;

  void serve_one(int socket) {
    serve(socket);
    const std::lock_guard lock(mutex);
    open.erase(socket);
    ::shutdown(socket, SHUT_RDWR);
    ::close(socket);
  }

  void accept_all() {
    for (;;) {
      const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      const std::lock_guard lock(mutex);
      if (socket < 0 || stopping) {
        if (socket >= 0) ::close(socket);
        return;
      }
      const int on = 1;
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      ++accepted;
      open.insert(socket);
      threads.emplace_back([this, socket] { serve_one(socket); });
    }
  }
};

LoopbackListener::LoopbackListener(std::function<void(int)> serve)
    : state_(std::make_unique<State>()) {
  state_->serve = std::move(serve);
  state_->listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (state_->listener < 0 || ::bind(state_->listener, generic, length) != 0 ||
      ::listen(state_->listener, 128) != 0 ||
      ::getsockname(state_->listener, generic, &length) != 0)
    throw std::runtime_error(std::string("a server on loopback: ") + std::strerror(errno));
  state_->port = ntohs(address.sin_port);
  state_->acceptor = std::thread([state = state_.get()] { state->accept_all(); });
}

LoopbackListener::~LoopbackListener() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    for (const int socket : state_->open) ::shutdown(socket, SHUT_RDWR);
  }
  ::shutdown(state_->listener, SHUT_RDWR);
  state_->acceptor.join();
  for (std::thread& thread : state_->threads) thread.join();
  ::close(state_->listener);
}

int LoopbackListener::port() const { return state_->port; }
int LoopbackListener::accepted() const { return state_->accepted; }

}  // namespace shoal::test
