#include "shoal/collectives/backend/progress_thread.h"

#include <algorithm>

namespace shoal::collectives {
namespace {

// After this many useless interruptions, submissions interrupt no more until a look finds something
// to do.
constexpr int kMostInVain = 8;
// The thread parks once its naps since the last operation add up to this.
constexpr auto kParkAfter = std::chrono::milliseconds(18);

}  // namespace

void ProgressThread::end(const std::function<void()>& ring) {
  ends_ = true;
  if (ring) ring();
  wake_up();
  if (thread_.joinable()) thread_.join();
}

void ProgressThread::run() {
  std::uint64_t seen = 0;
  for (Duration idle{}; !ends();) {
    const std::uint64_t driven = driven_.load();
    const bool undriven = driven == seen, busy = in_flight() > 0;
    seen = driven;
    if (busy || !undriven) idle = {};
    steps_.look();
    const bool useful = undriven && waiters.load() == 0 && (busy ? steps_.drive() : steps_.idle());
    if (useful) was_useful();
    if (useful && busy) continue;
    if (!useful && idle >= kParkAfter) {
      park();
    } else {
      idle += next_nap_;
      nap();
    }
  }
}

void ProgressThread::nap() {
  std::unique_lock lock(mutex_);
  long_nap_.store(next_nap_ > kShortestNap, std::memory_order_relaxed);
  const bool rung = bell_.wait_for(lock, next_nap_, [this] { return rung_; });
  long_nap_.store(false, std::memory_order_relaxed);
  rung_ = false;
  next_nap_ = rung ? kShortestNap : std::min(2 * next_nap_, longest_nap_);
}

void ProgressThread::park() {
  bool announced = false;
  // Either a submit sees the parked flag, or this thread sees the submitted operation.
  steps_.if_unlocked([&] {
    announced = in_flight() == 0 && !ends();
    if (announced) parked_.store(true, std::memory_order_relaxed);
  });
  if (!announced) return nap();
  std::unique_lock lock(mutex_);
  const auto woken = [this] { return rung_ || !parked(); };
  if (longest_park_ > Duration{})
    bell_.wait_for(lock, longest_park_, woken);
  else
    bell_.wait(lock, woken);
  parked_.store(false, std::memory_order_relaxed);
  rung_ = false;
  next_nap_ = kShortestNap;
}

void ProgressThread::was_useful() {
  const std::lock_guard lock(mutex_);
  next_nap_ = kShortestNap;
  in_vain_.store(0, std::memory_order_relaxed);
}

void ProgressThread::wake_up() {
  {
    const std::lock_guard lock(mutex_);
    rung_ = true;
    parked_.store(false, std::memory_order_relaxed);
  }
  bell_.notify_one();
}

void ProgressThread::interrupt() {
  if (!long_nap_.load(std::memory_order_relaxed)) return;
  if (in_vain_.load(std::memory_order_relaxed) >= kMostInVain) return;
  in_vain_.fetch_add(1, std::memory_order_relaxed);
  wake_up();
}

}  // namespace shoal::collectives
