// One run at a time writes into an output_dir. The file <output_dir>/run.lock says which: JSON with
// the host, its boot, the process and when it started, a token of this launch, and a beat that a
// thread of the holder raises every few seconds. It works on a network's disk, where no lock of the
// operating system is sure: the file is created by O_EXCL, and a beat that stands still for the
// lease, by the waiter's own clock, is a dead holder's.
//
//   auto lock = std::make_shared<RunLock>(output_dir, say);  // or throws who has it
//   ... write a checkpoint ...
//   lock->check();                                           // still ours, or throws who took it
//   transaction.commit();
//
// A holder of this host and boot is looked up among the processes: one that lives is refused at
// once, and a dead one's lock is taken over at once. All calls block on the file system.
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
  double lease = deadlines::kRunLease;  // seconds without a beat after which it is dead
};

class RunLock {
 public:
  // Makes output_dir if missing. invalid_argument: another run lives there, with its process, host
  // and times. io with path and reason. `say` hears of a wait and of a takeover.
  explicit RunLock(const std::string& output_dir,
                   const std::function<void(const std::string&)>& say = {},
                   const RunLockTimes& times = {});
  // Removes the file if it is still this run's; a failure is logged.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // unavailable, with who has it now, unless the lock is still this run's; io. Thread-safe.
  void check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
