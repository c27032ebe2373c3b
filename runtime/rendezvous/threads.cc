#include "shoal/runtime/rendezvous/threads.h"

#include <algorithm>

#include <sched.h>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal {

int threads_of_rank(const World& world, Store& store, Deadline deadline) {
  const auto wanted = env::get_integer(env::kThreads);
  if (world.size <= 1) return wanted > 0 ? static_cast<int>(wanted) : available_cores();
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0)
    log::once(log::Level::warn, "affinity",
              "this host does not say which cores a rank may use: one thread a rank; SHOAL_THREADS "
              "sets another number");
  std::string mine = world.host + "|";
  for (int core = 0; core < CPU_SETSIZE; ++core) mine += CPU_ISSET(core, &mask) ? '1' : '0';
  const auto all = exchange(store, "__shoal/affinity", world.rank, world.size, mine, deadline);
  // Only now: a rank that left earlier would keep the others waiting.
  if (wanted > 0) return static_cast<int>(wanted);
  const std::size_t first = world.host.size() + 1;
  double share = 0;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (mine[first + core] != '1') continue;
    const auto users = std::count_if(all.begin(), all.end(), [&](const std::string& other) {
      return other.compare(0, first, mine, 0, first) == 0 && other[first + core] == '1';
    });
    share += 1.0 / static_cast<double>(std::max<std::ptrdiff_t>(users, 1));
  }
  return std::max(1, static_cast<int>(share + 1e-9));
}

}  // namespace shoal
