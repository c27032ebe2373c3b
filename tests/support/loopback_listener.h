// A socket on 127.0.0.1 that serves each connection on its own thread. Link shoal_test_http.
#pragma once

#include <functional>
#include <memory>

namespace shoal::test {

class LoopbackListener {
 public:
  // Calls serve(socket) on the connection's thread and closes the socket when it returns. Throws
  // std::runtime_error if no socket can be opened.
  explicit LoopbackListener(std::function<void(int socket)> serve);
  // Shuts the connections down and waits for their threads.
  ~LoopbackListener();
  LoopbackListener(const LoopbackListener&) = delete;
  LoopbackListener& operator=(const LoopbackListener&) = delete;

  int port() const;
  int accepted() const;  // connections so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal::test
