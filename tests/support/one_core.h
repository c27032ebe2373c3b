// Ranks as threads that mostly wait for one another.
#pragma once

#include <sched.h>

namespace shoal::test {

// As long as it lives the calling thread, and the threads it starts, run on the core it is on. For
// small models on many ranks: a rank that waits hands the core to the one it waits for, where over
// two cores both look and yield (2.2 s of CPU instead of 6 for a layout of 8 ranks on busy cores).
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
