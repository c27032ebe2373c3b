#include "shoal/collectives/transport/doorbell.h"

#include <ctime>

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shoal/runtime/base/parallel_for.h"

namespace shoal::collectives::transport {

bool register_for_fences() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 &&
         syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
}

void fence_all_ranks() { syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0); }

void wake_always(RankPage& page) {
  page.doorbell.fetch_add(1);
  // Not FUTEX_PRIVATE, because processes share the word.
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&page.doorbell), FUTEX_WAKE, 1 << 30, nullptr,
          nullptr, 0);
}

void wake(RankPage& page) {
  if (page.sleepers.load() != 0) wake_always(page);
}

void Backoff::sleep(RankPage& own, std::uint32_t bell, int milliseconds) {
  const timespec limit{milliseconds / 1000, (milliseconds % 1000) * 1000000L};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&own.doorbell), FUTEX_WAIT, bell, &limit,
          nullptr, 0);
}

void Backoff::yield() { sched_yield(); }

std::uint32_t suitable_spins(int ranks, int cores) { return ranks <= cores ? 4000 : 0; }
std::uint32_t suitable_spins(int ranks) { return suitable_spins(ranks, available_cores()); }

}  // namespace shoal::collectives::transport
