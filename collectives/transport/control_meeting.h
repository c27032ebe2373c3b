// How the control links form: rank 0 listens and publishes its card, the others come to it.
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
  double out_of_reach;  // seconds for which rank 0's host may be so
};

// The connections: rank 0's by rank, of others the one to rank 0. Throws timeout naming the ranks
// that did not come; unavailable, naming addresses, port and host, where rank 0 is out of reach, on
// that rank and on rank 0; corrupt_data where rank 0's card is unreadable.
std::vector<Connection> meet(const Meeting& meeting);

}  // namespace shoal::collectives::transport::control
