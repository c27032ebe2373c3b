// The thread that drives an engine's operations while no caller does.
//
// It looks at its engine between naps. It takes over if something is in flight, no caller waits,
// and no caller has driven the engine since the last look. It drives until a caller waits or
// nothing is in flight. The thread never competes with a caller that submits and at once waits, and
// callers need not read the clock.
//
// Every look takes the core from a spinning rank and so delays its peers: looks every 400 us
// doubled the time of an 8-byte all_reduce. Naps therefore grow while the thread is not needed. A
// submission whose peers may wait for more than its descriptor cuts a long nap short. If the last
// few such interruptions were useless because the callers waited at once, submissions stop
// interrupting. With nothing in flight, the thread parks after about 20 ms.
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
  // The engine's functions that the thread calls.
  class Steps {
   public:
    virtual ~Steps() = default;
    // Drives while undisturbed(). Returns false if another thread had the lock.
    virtual bool drive() = 0;
    // Calls `body` with the engine's lock held, unless another thread has it.
    virtual void if_unlocked(const std::function<void()>& body) = 0;
    // Called at each look while nothing is in flight. Returns true if the thread must look again
    // soon.
    virtual bool idle() { return false; }
    // Called at each look.
    virtual void look() {}
  };
  using Duration = std::chrono::microseconds;
  static constexpr Duration kLongestNap{6400};

  // `longest_nap` bounds how late the thread takes over. `longest_park`: interval at which a parked
  // thread calls idle(); 0: it does not.
  explicit ProgressThread(Steps& steps, Duration longest_nap = kLongestNap,
                          Duration longest_park = {})
      : steps_(steps), longest_nap_(longest_nap), longest_park_(longest_park) {}
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  // Ends and joins the thread. `ring` wakes it if it sleeps inside drive().
  void end(const std::function<void()>& ring = {});

  // Hints that the thread need not see at once. Call these two with the engine's lock held, because
  // their updates are not atomic.
  void driven() { add(driven_, std::uint64_t{1}); }  // by a submit, test or wait
  void count_in_flight(int change) { add(in_flight_, change); }
  void none_in_flight() { in_flight_.store(0); }
  int in_flight() const { return in_flight_.load(); }
  std::atomic<int> waiters{0};  // callers that wait

  // Call after submitting with the lock held. `needed`: peers may wait for more than the
  // operation's descriptor. The call then cuts a long nap short, unless that has been useless
  // lately.
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
