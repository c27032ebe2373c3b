// Loops on threads of this process. All OpenMP goes through here (libgomp, the runtime that oneDNN
// uses too).
#pragma once

#include <cstdint>
#include <functional>

namespace shoal {

// Number of cores that this process may use: its affinity mask, or fewer if a control group's CPU
// quota allows less (cpu_quota.h). At least 1.
int available_cores();
// Number of cores in the calling thread's affinity mask, at least 1.
int affinity_cores();

// Calls body(begin, end) on contiguous, disjoint pieces that cover [0, count), using at most
// `threads` threads including the caller's. Returns when all are done. Each piece has at least
// `grain` items. The pieces depend only on (count, threads, grain), so a sum over pieces is the
// same in every run. Rethrows the exception of the first piece that threw. Nested calls run
// serially. Under ThreadSanitizer the pieces run one after the other.
void parallel_for(int threads, std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

// Limits how long libgomp's threads spin between parallel regions. libgomp's default is
// milliseconds, which slowed runs by up to four times if the machine ran anything else (another
// rank, a checkpoint writer).
//
// libgomp reads its environment when it is loaded and has no call for this. So call this first in
// main: it sets GOMP_SPINCOUNT=10000 (about 50 us, then the thread sleeps) and restarts the program
// once. Does nothing if GOMP_SPINCOUNT or OMP_WAIT_POLICY is set. If the restart fails, the run
// continues, only slower.
void restart_with_short_spins(char** argv);
// True if neither variable is set, so that threads spin for libgomp's default time.
bool threads_spin_long();

}  // namespace shoal
