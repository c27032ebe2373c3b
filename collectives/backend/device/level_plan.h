// Plans an operation on device memory by levels, for hosts that hold several ranks. The plan lists
// the data that neighbours take from each other's memory and the data that crosses between hosts.
// Each rank's share crosses on its own rail. Pure arithmetic in elements; every rank computes its
// own plan.
#pragma once

#include <vector>

#include "shoal/collectives/backend/hierarchical/placement.h"
#include "shoal/collectives/call.h"

namespace shoal::collectives::device {

struct LevelPlan {
  struct Part {
    std::int64_t at = 0, count = 0;
    bool moves = true;  // false: the data is already there
  };
  struct Copy {
    int source = 0;  // local rank whose send buffer is read
    std::int64_t from = 0, to = 0, count = 0;
  };
  // The rail's call; its ranks are numbered as the hosts. 16-bit floats are summed as f32, and avg
  // as a sum. The caller sets its buffers. nullopt: this rank has no rail.
  std::optional<Call> rail;
  // For each part of the rail's send and recv buffers, its position in the user's buffers.
  std::vector<Part> from, to;
  std::vector<int> sources;       // local ranks whose send buffers are folded into the rail's
  std::vector<int> destinations;  // local ranks whose recv buffers get the rail's result
  std::vector<Copy> copies;       // into this rank's own recv buffer
};

// Whether the operation can run by levels over these hosts: reduce_scatter and all_gather need the
// same number of ranks on every host. Does not check the operation's size, nor whether the device's
// kernels support its reduction.
bool has_levels(const Call& call, const hierarchical::Placement& where);
bool wants_even_hosts(Operation operation);
LevelPlan level_plan(const Call& call, int rank, const hierarchical::Placement& where);

// Whether neighbours read this rank's send buffer, or write its recv buffer, when the operation
// runs by levels. They must be able to reach such a buffer.
bool neighbours_read_send(const Call& call, int rank);
bool neighbours_write_recv(const Call& call, int rank);

}  // namespace shoal::collectives::device
