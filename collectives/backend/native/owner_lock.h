// A lock for what one thread uses nearly always: a caller and, now and then, a progress thread.
//
// The first thread that locks is the owner, and goes in and out with plain stores: a locked
// instruction would wait until everything stored before is visible, which after a word that another
// core polls takes as long as that core keeps the line. Who else wants in says so and makes every
// thread of the process pass a fence (membarrier(2)); then the owner's store or this wish has been
// seen by the other. Where the kernel refuses that, the owner's store is a locked one.
//
// Guests come and go (try_lock_as_guest). Any other thread that locks ends the ownership for good:
// from then on this is a mutex. Not recursive.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace shoal::collectives::native {

class OwnerLock {
 public:
  OwnerLock();

  void lock() {
    if (!enter()) lock_slowly();
  }
  bool try_lock() { return enter() || try_lock_slowly(false); }
  bool try_lock_as_guest() { return try_lock_slowly(true); }
  void unlock() {
    if (exclusive_)
      unlock_slowly();
    else
      leave();
  }

  // For a few instructions that may go another way: false where this thread is not the owner, or a
  // guest is in. leave() before anything else of this lock.
  bool enter() {
    if (owner_.load(std::memory_order_relaxed) != std::this_thread::get_id()) return false;
    if (asymmetric_) {
      inside_.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      inside_.exchange(true);
    }
    if (!wanted_.load()) return true;
    leave();
    return false;
  }
  void leave() { inside_.store(false, std::memory_order_release); }

 private:
  void lock_slowly();
  bool try_lock_slowly(bool guest);
  void unlock_slowly();
  // With mutex_ held: whether the owner is out, and stays out.
  bool exclude_owner(bool guest);

  const bool asymmetric_;
  std::atomic<std::thread::id> owner_;
  std::atomic<bool> inside_{false};  // the owner, without mutex_
  std::atomic<bool> wanted_{false};  // the owner must take mutex_
  bool exclusive_ = false;           // whoever is in holds mutex_
  std::mutex mutex_;
  bool shared_ = false;  // for good: wanted_ stays; with mutex_ held
};

}  // namespace shoal::collectives::native
