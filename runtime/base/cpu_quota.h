// CPU quotas of control groups: the share of the machine's CPU time that this process may use, on
// any cores.
#pragma once

#include <string>
#include <vector>

namespace shoal {

struct CpuQuota {
  double cores = 0;      // quota / period
  std::string file;      // source: ".../cpu.max" or ".../cpu.cfs_quota_us"
  std::string identity;  // device:inode of the group's directory: one group has one
};

// The quotas of all groups that hold this process, inner groups before those around them. Empty if
// there is none. A file that cannot be read or is malformed is logged once and sets no quota.
// `root`: where a test has its proc and sys.
std::vector<CpuQuota> cpu_quotas(const std::string& root = {});
// The quotas of this process, read when it first asks.
const std::vector<CpuQuota>& own_cpu_quotas();
// The smallest; null if there is none.
const CpuQuota* tightest(const std::vector<CpuQuota>& quotas);

// Threads that suit `cores` by affinity under these quotas: whole cores, at least 1.
int cores_within(int cores, const std::vector<CpuQuota>& quotas);

}  // namespace shoal
