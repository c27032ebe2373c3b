#include "shoal/collectives/backend/native/owner_lock.h"

#include <chrono>

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace shoal::collectives::native {
namespace {

bool register_process() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
         syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

}  // namespace

OwnerLock::OwnerLock() : asymmetric_(register_process()) {}

bool OwnerLock::exclude_owner(bool guest) {
  const std::thread::id self = std::this_thread::get_id();
  const std::thread::id owner = owner_.load(std::memory_order_relaxed);
  if (owner == self) return true;
  if (owner == std::thread::id()) {
    // No other thread can become the owner while mutex_ is held.
    if (!guest) owner_.store(self, std::memory_order_relaxed);
    return true;
  }
  if (!guest) shared_ = true;
  if (!wanted_.load(std::memory_order_relaxed)) {
    wanted_.store(true);
    if (asymmetric_) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
  }
  return !inside_.load();
}

void OwnerLock::lock_slowly() {
  mutex_.lock();
  // The loop waits at most once per OwnerLock: from then on the owner takes mutex_.
  while (!exclude_owner(false)) std::this_thread::sleep_for(std::chrono::microseconds(50));
  exclusive_ = true;
}

bool OwnerLock::try_lock_slowly(bool guest) {
  if (!mutex_.try_lock()) return false;
  if (exclude_owner(guest)) {
    exclusive_ = true;
    return true;
  }
  if (!shared_) wanted_.store(false);
  mutex_.unlock();
  return false;
}

void OwnerLock::unlock_slowly() {
  exclusive_ = false;
  if (!shared_) wanted_.store(false);
  mutex_.unlock();
}

}  // namespace shoal::collectives::native
