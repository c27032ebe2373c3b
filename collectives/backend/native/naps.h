// How the progress thread sleeps between looks at operations that no caller drives.
//
// Every look takes the core from a spinning rank, and its peers wait with it: looks every 400 us
// doubled the time of an 8-byte all_reduce. Naps therefore grow while the thread is not needed.
//
// A submission whose peers may wait for more than its descriptor cuts a long nap short. It does not
// if the last such interruptions were for callers that waited themselves at once.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace shoal::collectives::native {

class Naps {
 public:
  // Called by the progress thread: sleeps for 0.4 ms, doubling each time up to 6.4 ms.
  void nap();
  // Call if there was something to drive: the next nap is short.
  void was_useful();
  // Sleeps until wake_up(). Call announce_park() first, so that a thread that then reads parked()
  // wakes it.
  void announce_park() { parked_.store(true, std::memory_order_relaxed); }
  void park();

  // From any thread. Never blocks on the progress thread's work.
  bool parked() const { return parked_.load(std::memory_order_relaxed); }
  void wake_up();
  void interrupt();  // ends a long nap, if that has been useful

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
