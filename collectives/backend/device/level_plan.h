// How an operation on device memory goes by levels where hosts hold several ranks: what neighbours
// take from each other's memory, and what crosses between the hosts, each rank's share on its own
// rail. Pure arithmetic in elements; every rank computes its own.
#pragma once

#include <vector>

#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/backend/hierarchical/placement.h"

namespace shoal::collectives::device {

struct LevelPlan {
  struct Part {
    std::int64_t at = 0, count = 0;
    bool moves = true;  // false: what lies there is there already
  };
  struct Copy {
    int source = 0;  // local rank, whose send buffer is read
    std::int64_t from = 0, to = 0, count = 0;
  };
  // What the rail carries, its ranks numbered as the hosts are; 16-bit floats that are summed go as
  // f32, and avg as a sum. Its buffers are the caller's to give. No value: this rank has no rail.
  std::optional<Call> rail;
  // By part of the rail's send and recv buffer: where it lies in the user's.
  std::vector<Part> from, to;
  std::vector<int> sources;       // local ranks whose send buffers are folded into the rail's
  std::vector<int> destinations;  // local ranks whose recv buffers get what it brought
  std::vector<Copy> copies;       // into this rank's own recv buffer
};

// Whether an operation has such a form there: reduce_scatter and all_gather want equally many ranks
// on every host. Does not look at its size, nor at what the device can fold.
bool has_levels(const Call& call, const hierarchical::Placement& where);
bool wants_even_hosts(Operation operation);
LevelPlan level_plan(const Call& call, int rank, const hierarchical::Placement& where);

// By levels, ranks write into each other's recv buffers, or copy from send buffers, which
// neighbours therefore have to reach.
bool neighbours_read_send(const Call& call, int rank);
bool neighbours_write_recv(const Call& call, int rank);

}  // namespace shoal::collectives::device
