// What news of the control links means: an error that says whose fault it is.
#pragma once

#include <string>
#include <vector>

#include "shoal/collectives/diagnosis/flight_recorder.h"
#include "shoal/collectives/transport/control_links.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::net {

// The ranks of a job, for messages.
struct RankNames {
  int own = 0, size = 1;
  std::vector<std::string> hosts;  // by rank; empty: one host

  std::string named(int rank) const;  // "rank 3 (host node1)"
  // "ranks 2, 3 on host node1": all that are lost where that one is out of reach.
  std::string named_with_neighbours(int rank, std::vector<int>& ranks) const;
};

// What `operation` of this rank throws; `blame`: whom it names.
Error error_of(const transport::ControlNews& news, const RankNames& names,
               const std::string& operation, Blame& blame);

}  // namespace shoal::collectives::net
