// Chooses how a run's model is cut into pipeline stages.
#pragma once

#include <string>

#include "shoal/nn/layers/chain.h"
#include "shoal/parallel/apply/parallel_options.h"
#include "shoal/parallel/mesh/process_mesh.h"
#include "shoal/train/trainer/engine_parts.h"

namespace shoal {

// File in a checkpoint that records its cut.
inline constexpr const char* kPartitionFile = "partition.json";

// Sets options.plan's partition and options.trace. Uses the cut that mp_parameters sets, else the
// cut of the checkpoint to resume, else a cut by unit costs measured on the run's own samples.
// Returns a text for the log; empty: there is one stage. Collective over the mesh. `sample_stride`:
// difference between the ordinals of consecutive samples of a batch.
std::string choose_cut(const EngineParts& parts, const nn::Chain& chain,
                       const parallel::ProcessMesh& mesh, std::int64_t sample_stride,
                       parallel::ParallelOptions& options);

}  // namespace shoal
