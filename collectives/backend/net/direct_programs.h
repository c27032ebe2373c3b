// Programs in which every rank talks to every other: correct for all operations and ranks, and
// best where messages are few. Larger operations are chosen from collectives/algorithm.
#pragma once

#include "shoal/collectives/algorithm/program.h"
#include "shoal/collectives/backend/arguments.h"

namespace shoal::collectives {

// For `rank` of `size` (> 1). Buffers may be in place as communicator.h says.
Program direct_program(const Call& call, int rank, int size);

}  // namespace shoal::collectives
