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
  // Returns "ranks 2, 3 on host node1". Sets `ranks` to all ranks of `rank`'s host, or only to
  // `rank` if its host is this rank's host or the only host.
  std::string named_with_neighbours(int rank, std::vector<int>& ranks) const;
};

// The error that `operation` of this rank throws. Sets `blame` to the ranks that the error names.
Error error_of(const transport::ControlNews& news, const RankNames& names,
               const std::string& operation, Blame& blame);

}  // namespace shoal::collectives::net
