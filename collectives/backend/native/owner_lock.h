// A lock for data that one thread, the caller's, uses nearly always, and the progress thread now
// and then.
//
// The first thread that locks becomes the owner. It enters and leaves with plain stores: an atomic
// read-modify-write would wait until all earlier stores are visible, which takes long if another
// core polls one of those lines.
//
// Another thread that wants the lock sets a flag and makes every thread of the process pass a fence
// (membarrier(2)). Afterwards either it sees the owner's store or the owner sees the flag. If the
// kernel refuses membarrier, the owner uses an atomic exchange.
//
// A guest (try_lock_as_guest) leaves the ownership as it is. Any other second thread that locks
// ends the ownership for good: from then on this is a mutex. Not recursive.
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

  // Enters without waiting, for a few instructions. False if this thread is not the owner or a
  // guest holds the lock: take another path. After true, call leave() before any other method.
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
  // Call with mutex_ held. True if the owner is outside; it then stays there.
  bool exclude_owner(bool guest);

  const bool asymmetric_;
  std::atomic<std::thread::id> owner_;
  std::atomic<bool> inside_{false};  // the owner is inside, without mutex_
  std::atomic<bool> wanted_{false};  // the owner must take mutex_ to enter
  bool exclusive_ = false;           // the thread inside holds mutex_
  std::mutex mutex_;
  bool shared_ = false;  // ownership has ended: wanted_ stays set; guarded by mutex_
};

}  // namespace shoal::collectives::native
