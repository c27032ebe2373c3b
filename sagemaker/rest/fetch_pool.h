// Threads for network requests, so that several can be in flight.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace shoal::sagemaker {

// Work starts in submission order. It must not wait for other work of the same pool. The destructor
// waits for running work and drops the rest; dropped futures hold std::future_error (broken
// promise).
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
