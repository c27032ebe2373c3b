// Threads inside one process: the only door to OpenMP (libgomp, the runtime oneDNN uses too).
#pragma once

#include <cstdint>
#include <functional>

namespace shoal {

// Cores whose time this process may use: those of its affinity mask, or fewer where a CPU quota of
// a control group allows less (cpu_quota.h). At least 1.
int available_cores();
// Cores in the calling thread's affinity mask, at least 1.
int affinity_cores();

// Calls body(begin, end) on contiguous, disjoint pieces that cover [0, count), on at most `threads`
// threads, the caller's among them. Returns when all are done. Pieces hold at least `grain` items.
// They depend only on (count, threads, grain), so a result that is summed piece by piece is the
// same in every run. Rethrows the exception of the first piece that threw. Nested calls run
// serially. Under ThreadSanitizer the pieces run one after the other.
void parallel_for(int threads, std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

// Limits how long libgomp's threads spin between kernels: by default, milliseconds. On a machine
// that runs anything else (another rank, a checkpoint writer), that cost up to four times the run.
//
// libgomp reads its environment when it is loaded and has no call for this. Call it first in main:
// it sets GOMP_SPINCOUNT=10000 (about 50 us, then sleep) and starts the program again, once.
// Does nothing if GOMP_SPINCOUNT or OMP_WAIT_POLICY is set. If the start fails, the run is only
// slower.
void restart_with_short_spins(char** argv);
// True if neither variable is set, so that threads spin for as long as libgomp's default.
bool threads_spin_long();

}  // namespace shoal
