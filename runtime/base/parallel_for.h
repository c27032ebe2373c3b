// Threads inside one process: the only door to OpenMP (libgomp, the runtime oneDNN uses too).
#pragma once

#include <cstdint>
#include <functional>

namespace shoal {

// Cores whose time this process may use: those of its affinity mask, or fewer where a CPU quota of
// a control group allows less (cpu_quota.h). At least 1.
int available_cores();
// Cores of the calling thread's affinity mask alone, at least 1.
int affinity_cores();

// Calls body(begin, end) on contiguous, disjoint pieces that cover [0, count), on at most
// `threads` threads, the caller's among them; returns when all are done. Pieces hold at least
// `grain` items, and depend on (count, threads, grain) alone, so that a result that is summed
// piece by piece is the same in every run. The exception of the first piece that threw is rethrown
// here. Nested calls run serially. Under ThreadSanitizer the pieces run one after the other.
void parallel_for(int threads, std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

// libgomp's threads spin between kernels for milliseconds, which
// is right on a machine of one's own; where anything else runs on it (another rank, a checkpoint
// writer, a neighbour) it was measured to cost up to four times the whole run. libgomp offers no
// call for it and reads the environment when it is loaded. So a program calls this first thing in
// main: it sets GOMP_SPINCOUNT=10000 (some 50 us, then sleep) and starts the program again, once.
// Returns, doing nothing, where GOMP_SPINCOUNT or OMP_WAIT_POLICY is set; where the start fails the
// run is only slower.
void restart_with_short_spins(char** argv);
// Whether neither variable is set, so that threads spin as long as libgomp likes.
bool threads_spin_long();

}  // namespace shoal
