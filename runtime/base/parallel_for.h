// Threads inside one process: the only door to OpenMP (libgomp, the runtime oneDNN uses too).
#pragma once

#include <cstdint>
#include <functional>

namespace shoal {

// Cores this process may use (its affinity mask), at least 1.
int available_cores();

// Calls body(begin, end) on contiguous, disjoint pieces that cover [0, count), on at most
// `threads` threads, the caller's among them; returns when all are done. Pieces hold at least
// `grain` items, and depend on (count, threads, grain) alone, so that a result that is summed
// piece by piece is the same in every run. The exception of the first piece that threw is rethrown
// here. Nested calls run serially. Under ThreadSanitizer the pieces run one after the other.
void parallel_for(int threads, std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

}  // namespace shoal
