#include "shoal/train/checkpoint/checkpoint_writer.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <sys/resource.h>
#include <unistd.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/io/file_system.h"

namespace shoal {

// One mutex guards everything; it is never held while a job runs.
struct CheckpointWriter::Impl {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> job;
  bool running = false, stopping = false;
  std::atomic<std::uint64_t> signs{0};  // signs of progress so far
  std::exception_ptr error;
  std::thread thread;

  void loop() {
    // Kernels wait for their slowest thread. Sharing a core evenly with this thread would slow a
    // whole step down, so this thread gets a lower priority. (Linux gives each thread a niceness.)
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10);
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return job || stopping; });
      if (!job) return;
      std::function<void()> current = std::exchange(job, nullptr);
      running = true;
      lock.unlock();
      std::exception_ptr failed;
      try {
        const progress::Listener hears([this] { ++signs; });
        current();
      } catch (...) {
        failed = std::current_exception();
      }
      current = nullptr;  // frees the snapshot before waiting callers are notified
      lock.lock();
      running = false;
      if (failed) error = failed;
      changed.notify_all();
    }
  }
  void rethrow(std::unique_lock<std::mutex>& lock) {
    if (!error) return;
    const std::exception_ptr failed = std::exchange(error, nullptr);
    lock.unlock();
    std::rethrow_exception(failed);
  }
};

CheckpointWriter::CheckpointWriter() : impl_(std::make_unique<Impl>()) {
  impl_->thread = std::thread([this] { impl_->loop(); });
}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::scoped_lock lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->changed.notify_all();
  impl_->thread.join();
  if (impl_->error)
    best_effort("write a checkpoint", [this] { std::rethrow_exception(impl_->error); });
}

void CheckpointWriter::submit(std::function<void()> job) {
  finish();
  {
    const std::scoped_lock lock(impl_->mutex);
    impl_->job = std::move(job);
  }
  impl_->changed.notify_all();
}

void CheckpointWriter::check() {
  std::unique_lock lock(impl_->mutex);
  impl_->rethrow(lock);
}

void CheckpointWriter::finish() {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [this] { return !impl_->job && !impl_->running; });
  impl_->rethrow(lock);
}

void CheckpointWriter::finish(const std::function<void()>& progressed) {
  for (std::uint64_t seen = impl_->signs; busy();) {
    {
      std::unique_lock lock(impl_->mutex);
      impl_->changed.wait_for(lock, deadlines::kLookAtRanks,
                              [this] { return !impl_->job && !impl_->running; });
    }
    if (const std::uint64_t now = impl_->signs; now != seen) {
      seen = now;
      progressed();
    }
  }
  finish();
}

bool CheckpointWriter::busy() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->job || impl_->running;
}

}  // namespace shoal
