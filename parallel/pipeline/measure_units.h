// Measures the cost of each unit of a model by running it.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/layers/chain.h"
#include "shoal/parallel/pipeline/chain_stage.h"
#include "shoal/parallel/pipeline/partition.h"

namespace shoal::parallel {

struct MeasureOptions {
  DType dtype = DType::f32;      // dtype of values and activations
  int repetitions = 3;           // the fastest one is used
  ChainStageOptions stage = {};  // as in training, without offloader and observer
  bool split_backward = false;   // adds a run that measures UnitCost's values for split backwards
  // Offload activations with training's options: a unit then keeps only tensors that stay in
  // memory. Times are measured without offloading, because a pipeline hides the wait for a file.
  std::optional<OffloadOptions> offload = {};
  // Counts the context's memory and the memory of the unit's groups
  // (CommunicatorOptions::counted_by), so that tensor-parallel exchanges are included.
  // measure_units() resets its peaks. Null: only the context's memory is counted.
  CountingMemory* counted_by = nullptr;
};

// Measures one unit after the other: allocates values and gradients, runs forward and backward on
// `microbatch`, and frees the memory. Never more than one unit is allocated. Of equal units (same
// kinds of modules and shapes of parameters) only the first is measured. No parameter may be
// materialised before, and none is afterwards; initial values are not drawn.
//
// All ranks of `group` measure at the same time, as in training. The mean of their times and the
// maximum of their bytes are used, so that all ranks make the same plan. A tensor-parallel group
// must lie within `group`. Collective; blocks.
std::vector<UnitCost> measure_units(const nn::Context& context, nn::Chain& chain,
                                    const Microbatch& microbatch, collectives::Communicator& group,
                                    const MeasureOptions& options);

// Runs nothing: counts parameters and uses their number as work. Embeddings get no work, because
// they multiply nothing.
std::vector<UnitCost> count_units(const nn::Chain& chain);

// If parts of a parameter differ in size between ranks (vocabularies under tensor parallelism), all
// ranks use the largest part in `group`, so that they make the same plan. Collective; blocks.
void agree_on_parameters(std::span<UnitCost> units, collectives::Communicator& group);

}  // namespace shoal::parallel
