// Restricts ranks that run as threads, and mostly wait for one another, to one core.
#pragma once

#include <sched.h>

namespace shoal::test {

// While it lives, the calling thread and the threads it starts run on the current core. Use it for
// small models on many ranks. A waiting rank then yields its core to the rank it waits for; on two
// cores both ranks poll and yield (2.2 s of CPU time instead of 6 for a layout of 8 ranks on busy
// cores).
class OneCore {
 public:
  OneCore() {
    const int core = sched_getcpu();
    if (core < 0 || sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    changed_ = sched_setaffinity(0, sizeof one, &one) == 0;
  }
  ~OneCore() {
    if (changed_) sched_setaffinity(0, sizeof before_, &before_);
  }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;

 private:
  cpu_set_t before_ = {};
  bool changed_ = false;
};

}  // namespace shoal::test
