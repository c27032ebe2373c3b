// How many threads each rank of a host may use.
#pragma once

#include <vector>

#include "shoal/runtime/base/cpu_quota.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal {

// SHOAL_THREADS where it is set. Else the smaller of two shares, in whole threads and at least 1:
// - of the cores that the calling thread may run on: a core that k ranks of the host may use counts
//   1/k, so that ranks bound to cores of their own get all of those and unbound ranks an equal
//   part;
// - of each CPU quota: k ranks of the host in one control group get 1/k of its quota each.
// Every rank must call it, once a store: they exchange their affinity masks and quotas.
// corrupt_data, naming the rank, where another rank's answer is malformed.
int threads_of_rank(const World& world, Store& store, Deadline deadline,
                    const std::vector<CpuQuota>& quotas = own_cpu_quotas());

}  // namespace shoal
