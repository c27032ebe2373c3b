// Ensures that only one run writes into an output_dir. The file <output_dir>/run.lock names the
// run. It holds JSON with the host, its boot, the process and its start time, a token of this
// launch, and a beat counter. A thread of the holder raises the counter every few seconds.
//
// The lock works on network disks, where operating system locks are unreliable: the file is created
// with O_EXCL. A holder counts as dead if its beat does not change during the lease, by the
// waiter's own clock.
//
//   auto lock = std::make_shared<RunLock>(output_dir, say);  // or throws and names the holder
//   ... write a checkpoint ...
//   lock->check();                                           // throws if another run took the lock
//   transaction.commit();
//
// If the holder is of this host and boot, its process is looked up: a living holder is refused at
// once, and a dead holder's lock is taken over at once. All calls block on the file system.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "shoal/runtime/base/deadlines.h"

namespace shoal {

inline constexpr std::string_view kRunLockFile = "run.lock";

struct RunLockTimes {
  double beat = deadlines::kRunBeat;    // seconds between two beats of the holder
  double lease = deadlines::kRunLease;  // seconds without a beat until the holder counts as dead
};

class RunLock {
 public:
  // Creates output_dir if missing. Throws invalid_argument if another run is alive there, with its
  // process, host and times; io with path and reason. Calls `say` about a wait or a takeover.
  explicit RunLock(const std::string& output_dir,
                   const std::function<void(const std::string&)>& say = {},
                   const RunLockTimes& times = {});
  // Removes the file if it is still this run's; a failure is logged.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Throws unavailable, naming the present holder, if the lock is no longer this run's; or io.
  // Thread-safe.
  void check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
