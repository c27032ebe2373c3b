// Turns news of the control links into an error that names the ranks at fault.
#pragma once

#include <string>
#include <vector>

#include "shoal/collectives/diagnosis/flight_recorder.h"
#include "shoal/collectives/transport/control_links.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::net {

// Names the ranks of a job in messages.
struct RankNames {
  int own = 0, size = 1;
  std::vector<std::string> hosts;  // by rank; empty: one host

  std::string named(int rank) const;  // "rank 3 (host node1)"
  // "ranks 2, 3 on host node1": all lost ranks, if that rank's host is unreachable.
  std::string named_with_neighbours(int rank, std::vector<int>& ranks) const;
};

// The error that `operation` of this rank throws; sets `blame` to the ranks it names.
Error error_of(const transport::ControlNews& news, const RankNames& names,
               const std::string& operation, Blame& blame);

}  // namespace shoal::collectives::net
