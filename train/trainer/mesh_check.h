// Checks a run on a mesh before any rank allocates memory.
#pragma once

#include <cstdint>

#include "shoal/nn/layers/chain.h"
#include "shoal/train/trainer/resolved_run.h"

namespace shoal {

// `run` must have mp_parameters. The chain's parameters need no values.
// Throws invalid_argument with every problem of the layout (check_layout()), otherwise with the
// first problem of the partition. The messages give numbers and remedies. `length`: positions of a
// sample; 0: unknown. If a partition is to be loaded, reads its file. Same result on every rank.
void check_mesh(const ResolvedRun& run, const nn::Chain& chain, int ranks, std::int64_t length);

}  // namespace shoal
