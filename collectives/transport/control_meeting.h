// Connects the control links: rank 0 listens and publishes its card, and the other ranks connect to
// it.
#pragma once

#include <string>
#include <vector>

#include "shoal/collectives/transport/control_connection.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives::transport::control {

struct Meeting {
  int rank, size;
  Store& store;
  const std::string& prefix;
  Deadline deadline;
  double out_of_reach;  // seconds for which rank 0's host may be out of reach
};

// Returns the connections: on rank 0 by rank, elsewhere only the one to rank 0. Throws timeout,
// naming the missing ranks, or corrupt_data if rank 0's card is unreadable. If a rank cannot reach
// rank 0, both ranks throw unavailable, naming addresses, port and host.
std::vector<Connection> meet(const Meeting& meeting);

}  // namespace shoal::collectives::transport::control
