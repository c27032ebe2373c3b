// The thread that drives what no caller drives.
//
// It looks at its engine between naps. If something is in flight, no caller waits and no caller has
// driven the engine since the last look, it takes over until one of those changes. A caller that
// submits and then waits at once never meets it, and callers need not read the clock.
//
// Every look takes the core from a spinning rank, and its peers wait with it: looks every 400 us
// doubled the time of an 8-byte all_reduce. Naps therefore grow while the thread is not needed. A
// submission whose peers may wait for more than its descriptor cuts a long nap short. It does not
// if the last such interruptions were for callers that waited themselves at once. With nothing in
// flight, the thread parks after about 20 ms.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace shoal::collectives {

class ProgressThread {
 public:
  // The engine's part, called on the thread.
  class Steps {
   public:
    virtual ~Steps() = default;
    // Drives while undisturbed(). False: another thread had the lock.
    virtual bool drive() = 0;
    // Calls `body` with the engine's lock held, unless another thread has it.
    virtual void if_unlocked(const std::function<void()>& body) = 0;
    // Called at each look while nothing is in flight. True: the thread must look again soon.
    virtual bool idle() { return false; }
    // Called at each look.
    virtual void look() {}
  };
  using Duration = std::chrono::microseconds;
  static constexpr Duration kLongestNap{6400};

  // `longest_nap`: bounds how late the thread takes over. `longest_park`: interval of idle() while
  // it is parked; 0: none.
  explicit ProgressThread(Steps& steps, Duration longest_nap = kLongestNap,
                          Duration longest_park = {})
      : steps_(steps), longest_nap_(longest_nap), longest_park_(longest_park) {}
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  // Ends the thread. `ring` wakes it where drive() sleeps.
  void end(const std::function<void()>& ring = {});

  // Hints, which the thread only has to see soon. Call these two with the engine's lock held: they
  // are plain stores.
  void driven() { add(driven_, std::uint64_t{1}); }  // by a submit, test or wait
  void count_in_flight(int change) { add(in_flight_, change); }
  void none_in_flight() { in_flight_.store(0); }
  int in_flight() const { return in_flight_.load(); }
  std::atomic<int> waiters{0};  // callers that wait

  // Call after something was submitted with the lock held. `needed`: its peers may wait for more
  // than its descriptor, which cuts a long nap short, if that has been useful.
  void submitted(bool needed = true) {
    if (parked())
      wake_up();
    else if (needed)
      interrupt();
  }
  bool parked() const { return parked_.load(std::memory_order_relaxed); }
  void wake_up();

  // For drive().
  bool undisturbed() const { return waiters.load() == 0 && in_flight() > 0 && !ends(); }
  bool ends() const { return ends_.load(); }

 private:
  template <typename T>
  static void add(std::atomic<T>& hint, T change) {
    hint.store(hint.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  void run();
  void interrupt();
  void nap();
  void park();
  void was_useful();

  static constexpr Duration kShortestNap{400};
  Steps& steps_;
  const Duration longest_nap_, longest_park_;
  std::atomic<std::uint64_t> driven_{0};
  std::atomic<int> in_flight_{0};
  std::atomic<bool> ends_{false}, parked_{false}, long_nap_{false};
  std::atomic<int> in_vain_{0};  // interruptions since the thread was last useful
  std::mutex mutex_;
  std::condition_variable bell_;
  bool rung_ = false;
  Duration next_nap_{kShortestNap};
  std::thread thread_;
};

}  // namespace shoal::collectives
