// CPU quotas of control groups: how much of the machine's CPU time this process may use, on any
// cores.
#pragma once

#include <string>
#include <vector>

namespace shoal {

struct CpuQuota {
  double cores = 0;  // quota / period
  std::string file;  // source: ".../cpu.max" or ".../cpu.cfs_quota_us"
  std::string
      identity;  // device:inode of the group's directory; equal for all processes of the group
};

// The quotas of all groups that this process belongs to, inner groups first. Empty if there are
// none. A file that cannot be read or is malformed is logged once and sets no quota. `root`: prefix
// of /proc and /sys, for tests.
std::vector<CpuQuota> cpu_quotas(const std::string& root = {});
// This process's quotas, read at the first call.
const std::vector<CpuQuota>& own_cpu_quotas();
// The smallest quota; null if `quotas` is empty.
const CpuQuota* tightest(const std::vector<CpuQuota>& quotas);

// Number of threads to use on `cores` cores (by affinity) under these quotas. At least 1.
int cores_within(int cores, const std::vector<CpuQuota>& quotas);

}  // namespace shoal
