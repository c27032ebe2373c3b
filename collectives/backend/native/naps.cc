#include "shoal/collectives/backend/native/naps.h"

#include <algorithm>

namespace shoal::collectives::native {
namespace {

// This many useless interruptions are tried; a nap that finds an undriven operation enables them
// again.
constexpr int kMostInVain = 8;

}  // namespace

void Naps::nap() {
  std::unique_lock lock(mutex_);
  long_nap_.store(next_ > kShortest, std::memory_order_relaxed);
  const bool rung = bell_.wait_for(lock, next_, [this] { return rung_; });
  long_nap_.store(false, std::memory_order_relaxed);
  rung_ = false;
  next_ = rung ? kShortest : std::min(2 * next_, kLongest);
}

void Naps::was_useful() {
  const std::lock_guard lock(mutex_);
  next_ = kShortest;
  in_vain_.store(0, std::memory_order_relaxed);
}

void Naps::park() {
  std::unique_lock lock(mutex_);
  bell_.wait(lock, [this] { return rung_ || !parked(); });
  parked_.store(false, std::memory_order_relaxed);
  rung_ = false;
  next_ = kShortest;
}

void Naps::wake_up() { ring(); }

void Naps::interrupt() {
  if (!long_nap_.load(std::memory_order_relaxed)) return;
  if (in_vain_.load(std::memory_order_relaxed) >= kMostInVain) return;
  in_vain_.fetch_add(1, std::memory_order_relaxed);
  ring();
}

void Naps::ring() {
  {
    const std::lock_guard lock(mutex_);
    rung_ = true;
    parked_.store(false, std::memory_order_relaxed);
  }
  bell_.notify_one();
}

}  // namespace shoal::collectives::native
