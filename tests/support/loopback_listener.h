// A socket on 127.0.0.1 whose connections are served by a thread each. Link shoal_test_http.
#pragma once

#include <functional>
#include <memory>

namespace shoal::test {

class LoopbackListener {
 public:
  // serve(socket): on the connection's thread; the socket is closed when it returns. Throws
  // std::runtime_error where there is no socket.
  explicit LoopbackListener(std::function<void(int socket)> serve);
  // Shuts connections down and waits for their threads.
  ~LoopbackListener();
  LoopbackListener(const LoopbackListener&) = delete;
  LoopbackListener& operator=(const LoopbackListener&) = delete;

  int port() const;
  int accepted() const;  // connections, so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal::test
