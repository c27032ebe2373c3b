#include "shoal/collectives/transport/doorbell.h"

#include <algorithm>
#include <bit>
#include <ctime>
#include <functional>
#include <map>
#include <string>

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shoal/runtime/base/cpu_quota.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::collectives::transport {

bool register_for_fences() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 &&
         syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
}

void fence_all_ranks() { syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0); }

void wake_always(RankPage& page) {
  page.doorbell.fetch_add(1);
  // Not FUTEX_WAKE_PRIVATE, because processes share the word.
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

void publish_cores(RankPage& own) {
  static_assert(sizeof(cpu_set_t) == sizeof own.cores);
  sched_getaffinity(0, sizeof own.cores, reinterpret_cast<cpu_set_t*>(own.cores.data()));
  if (const CpuQuota* const quota = tightest(own_cpu_quotas())) {
    own.quota_cores = quota->cores;
    own.quota_group = std::hash<std::string>()(quota->identity);
  }
}

int cores_of(std::span<const RankPage* const> pages) {
  decltype(RankPage::cores) cores{};
  std::map<std::uint64_t, double> quotas;  // one for each control group
  bool unlimited = false;
  for (const RankPage* const page : pages) {
    for (std::size_t i = 0; i < cores.size(); ++i) cores[i] |= page->cores[i];
    unlimited = unlimited || page->quota_cores <= 0;
    quotas[page->quota_group] = page->quota_cores;
  }
  double count = 0, quota = 0;
  for (const std::uint64_t word : cores) count += std::popcount(word);
  for (const auto& [group, of_group] : quotas) quota += of_group;
  return std::max(1, static_cast<int>(unlimited ? count : std::min(count, quota)));
}

std::uint32_t suitable_spins(int ranks, int cores) { return ranks <= cores ? 4000 : 0; }
std::uint32_t suitable_spins(int ranks) { return suitable_spins(ranks, available_cores()); }

}  // namespace shoal::collectives::transport
