#include "shoal/sagemaker/rest/fetch_pool.h"

#include <utility>

namespace shoal::sagemaker {

FetchPool::FetchPool(int threads) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { serve(); });
  } catch (...) {  // the system cannot start another thread
    stop();
    throw;
  }
}

FetchPool::~FetchPool() { stop(); }

void FetchPool::stop() {
  std::deque<std::packaged_task<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::future<void> FetchPool::run(std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
  }
  wake_.notify_one();
  return done;
}

void FetchPool::serve() {
  for (;;) {
    std::packaged_task<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
    }
    task();
  }
}

}  // namespace shoal::sagemaker
