// Threads that wait for the network, so that several requests are under way at once.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace shoal::sagemaker {

// Work is started in the order in which it was given; it must not itself wait for work given to the
// same pool. Destroying the pool waits for what runs; what has not begun is dropped, and its future
// holds std::future_error (broken promise).
class FetchPool {
 public:
  explicit FetchPool(int threads);
  ~FetchPool();
  FetchPool(const FetchPool&) = delete;
  FetchPool& operator=(const FetchPool&) = delete;

  std::future<void> run(std::function<void()> work);

 private:
  void serve();
  void stop();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::packaged_task<void()>> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace shoal::sagemaker
