#include "shoal/runtime/base/parallel_for.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include "shoal/runtime/base/cpu_quota.h"

namespace shoal {

int available_cores() { return cores_within(affinity_cores(), own_cpu_quotas()); }

int affinity_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return std::max(1, CPU_COUNT(&mask));
  return 1;
}

bool threads_spin_long() {
  return std::getenv("GOMP_SPINCOUNT") == nullptr && std::getenv("OMP_WAIT_POLICY") == nullptr;
}

void restart_with_short_spins(char** argv) {
  if (!threads_spin_long()) return;
  ::setenv("GOMP_SPINCOUNT", "10000", 1);
  // Uses the real path, since ps, top and pgrep show a process started as /proc/self/exe as "exe".
  std::array<char, 4096> path{};
  if (::readlink("/proc/self/exe", path.data(), path.size() - 1) > 0) ::execv(path.data(), argv);
  ::execv("/proc/self/exe", argv);
}

void parallel_for(int threads, std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t pieces = std::clamp<std::int64_t>(count / grain, 1, std::max(threads, 1));
  const auto piece = [&](std::int64_t index) {
    const std::int64_t size = count / pieces,
                       longer = count % pieces;  // the first `longer` pieces get one item more
    const std::int64_t begin = index * size + std::min(index, longer);
    body(begin, begin + size + (index < longer));
  };
#ifndef SHOAL_SERIAL_PARALLEL_FOR
  if (pieces > 1 && !omp_in_parallel()) {
    std::exception_ptr
        failure;  // from the lowest failed piece, so that it is the same in every run
    std::int64_t failed = pieces;
#pragma omp parallel for num_threads(static_cast<int>(pieces)) schedule(static, 1)
    for (std::int64_t index = 0; index < pieces; ++index) {
      try {
        piece(index);
      } catch (...) {
#pragma omp critical(shoal_parallel_for)
        if (index < failed) {
          failed = index;
          failure = std::current_exception();
        }
      }
    }
    if (failure) std::rethrow_exception(failure);
    return;
  }
#endif
  for (std::int64_t index = 0; index < pieces; ++index) piece(index);
}

}  // namespace shoal
