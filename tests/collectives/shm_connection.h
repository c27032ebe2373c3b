// A shared-memory endpoint without a communicator, for tests of the transport alone.
#pragma once

#include <memory>
#include <string>

#include "shoal/collectives/transport/endpoint.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives::transport {

// Collective. Makes an endpoint with its own memory and links, for ranks of one host. `prefix` must
// be new in `store` for each group. Throws timeout and names the missing ranks.
std::unique_ptr<Endpoint> connect_shm_endpoint(int rank, int size, Store& store,
                                               const std::string& prefix, Deadline deadline);

}  // namespace shoal::collectives::transport
