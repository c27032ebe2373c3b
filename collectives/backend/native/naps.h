// How the progress thread rests between looks at what nobody drives.
//
// Every look takes the core from a rank that spins, and its peers wait with it: looks every 400 us
// doubled the time of an 8-byte all_reduce. So while nobody needs the thread its naps grow, and a
// submission whose peers may wait for more than its descriptor cuts a long one short, unless the
// last such interruptions were for callers who waited by themselves at once.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace shoal::collectives::native {

class Naps {
 public:
  // The progress thread: rests for 0.4 ms, twice as long each time, at most 6.4 ms.
  void nap();
  // It had something to drive: the next nap is a short one.
  void was_useful();
  // Rests until wake_up(). announce_park() first, so that who reads parked() after it wakes us.
  void announce_park() { parked_.store(true, std::memory_order_relaxed); }
  void park();

  // Any thread. Never blocks on the progress thread's work.
  bool parked() const { return parked_.load(std::memory_order_relaxed); }
  void wake_up();
  void interrupt();  // ends a long nap, if that has been of use

 private:
  void ring();

  std::mutex mutex_;
  std::condition_variable bell_;
  bool rung_ = false;
  std::atomic<bool> parked_{false}, long_nap_{false};
  std::atomic<int> in_vain_{0};  // interruptions since the thread was last useful
  std::chrono::microseconds next_{kShortest};

  static constexpr std::chrono::microseconds kShortest{400}, kLongest{6400};
};

}  // namespace shoal::collectives::native
