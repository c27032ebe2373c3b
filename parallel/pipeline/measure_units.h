// What each unit of a model costs, by running it.
#pragma once

#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/layers/chain.h"
#include "shoal/parallel/pipeline/partition.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::parallel {

struct MeasureOptions {
  DType dtype = DType::f32;  // parameters are materialised in it, a unit at a time
  int repetitions = 3;       // the fastest counts
  int checkpoint_group = 0;  // a checkpointed unit keeps its input only, and runs forward twice
};

// Materialises one unit after the other with initial values, runs it forward and backward on
// `input`, and gives its memory back: never more than one unit is held. No parameter may be
// materialised before; none is afterwards. `memory` must be the context's. Rank 0 of `group`
// measures and tells the others, so that all plan alike; collective over it.
std::vector<UnitCost> measure_units(nn::Context& context, CountingMemory& memory, nn::Chain& chain,
                                    const nn::ChainInput& input, collectives::Communicator& group,
                                    const MeasureOptions& options);

// Without running anything: parameters, and time in proportion to them (embeddings, which multiply
// nothing, none).
std::vector<UnitCost> count_units(const nn::Chain& chain);

}  // namespace shoal::parallel
