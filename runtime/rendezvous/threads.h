// How many threads each rank of a host may use.
#pragma once

#include <vector>

#include "shoal/runtime/base/cpu_quota.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal {

// SHOAL_THREADS if it is set. Otherwise the smaller of two shares, in whole threads, at least 1:
// - Cores on which the calling thread may run. A core that k ranks of the host may use counts 1/k,
//   so ranks bound to different cores get all of theirs, and unbound ranks get equal shares.
// - CPU quotas. If k ranks of the host are in one control group, each gets 1/k of its quota.
//
// Collective; call it once per store: ranks exchange their affinity masks and quotas. Throws
// corrupt_data, naming the rank, if another rank's answer is malformed.
int threads_of_rank(const World& world, Store& store, Deadline deadline,
                    const std::vector<CpuQuota>& quotas = own_cpu_quotas());

}  // namespace shoal
