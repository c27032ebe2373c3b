// How many threads each rank of a host may use.
#pragma once

#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal {

// SHOAL_THREADS where it is set; else this rank's share of the cores that the calling thread may
// run on: a core that k ranks of the host may use counts 1/k, so that ranks bound to cores of their
// own get all of those and unbound ranks an equal part. At least 1. Every rank must call it, once a
// store: they exchange their affinity masks.
int threads_of_rank(const World& world, Store& store, Deadline deadline);

}  // namespace shoal
