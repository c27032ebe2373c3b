// What each unit of a model costs, by running it.
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
  DType dtype = DType::f32;      // of values and activations
  int repetitions = 3;           // the fastest counts
  ChainStageOptions stage = {};  // as training has them, without offloader and observer
  bool split_backward = false;   // by one run more, UnitCost's numbers of it
  // Activations leave for a file (training's options for it): what a unit keeps is then what stays.
  // Times are without it: waiting for a file is no computation, and a pipeline hides it.
  std::optional<OffloadOptions> offload = {};
  // Counts the context's memory and what the unit's groups share (CommunicatorOptions::counted_by),
  // so that exchanges of tensor parallelism are seen; its peaks are reset. Null: the context's
  // alone.
  CountingMemory* counted_by = nullptr;
};

// Gives one unit after the other memory for values and gradients, runs it forward and backward on
// `microbatch`, and takes the memory back: never more than one unit is held. Of units alike (kinds
// of modules, shapes of parameters) the first speaks for all. No parameter may be materialised
// before; none is afterwards; initial values are not drawn. Every rank of `group` measures, at the
// same time as in training; the mean of their times and the most bytes count, so that all plan
// alike. Tensor-parallel parts must lie in it with their whole group. Collective; blocks.
std::vector<UnitCost> measure_units(const nn::Context& context, nn::Chain& chain,
                                    const Microbatch& microbatch, collectives::Communicator& group,
                                    const MeasureOptions& options);

// Without running anything: parameters, and as work their number (embeddings, which multiply
// nothing, have none).
std::vector<UnitCost> count_units(const nn::Chain& chain);

// Of parameters whose parts are not equally many everywhere (vocabularies under tensor parallelism)
// the largest part of `group` counts on each of its ranks, so that all plan alike. Collective;
// blocks.
void agree_on_parameters(std::span<UnitCost> units, collectives::Communicator& group);

}  // namespace shoal::parallel
