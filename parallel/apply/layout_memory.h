// Memory that a rank of a layout needs, by tag, computed from its parameters and units: the
// formulas of docs/internals/layouts.md ("What a rank holds"). Pure; bench/parallel prints them
// beside the measured bytes.
#pragma once

#include <cstdint>
#include <span>

#include "shoal/parallel/activation/offload.h"
#include "shoal/parallel/apply/parallel_model.h"
#include "shoal/parallel/pipeline/partition.h"
#include "shoal/parallel/pipeline/schedule.h"

namespace shoal::parallel {

struct StateRequest {
  std::int64_t elements = 0;    // this rank's trainable elements; shared ones count once
  std::int64_t persistent = 0;  // how many of `elements` are kept whole at level 3
  std::int64_t frozen = 0;      // how many others: whole on every rank, values only
  DType dtype = DType::f32;     // dtype of values
  int level = 0;                // sharding level
  int shards = 1;               // ranks that share one copy
  std::int64_t states = 0;      // f32 numbers of the update rule that ranks divide as `elements`
  std::int64_t means = 0;       // others, of rows and columns: not divided
  bool masters = true;          // for 16-bit values; false with stochastic rounding
};
// Bytes between two steps.
struct StateMemory {
  double parameters = 0, gradients = 0, optimizer = 0;
};
StateMemory state_memory(const StateRequest& request);
// The request that describes this rank's part of `model`, updated by `rule`.
StateRequest state_request(const ParallelModel& model, const nn::UpdateRule& rule);

// Exact bytes between two steps, as the MemoryResource counts them: state_memory() plus the gaps of
// the layout. Parameters begin at cache lines in gradients, masters and moments. Buckets divide
// into parts of whole cache lines. The scratch of LAMB and Adafactor is not included. A shard has
// the means only of parameters that it has elements of, of which state_memory() knows nothing.
StateMemory exact_state_memory(const ParallelModel& model, const nn::UpdateRule& rule);

struct ActivationRequest {
  // Per microbatch, measured without checkpointing and offloading (measure_units()). If the
  // schedule splits backwards, measured with MeasureOptions::split_backward.
  std::span<const UnitCost> units;
  double stream_bytes = 0;   // bytes of the residual stream between two units
  int checkpoint_group = 0;  // nn::forward_units()
  bool offloads = false;     // offloads the tensors that tapes keep
  bool only_inputs = false;  // offloads only the inputs that checkpoints keep, as PyTorch's models
  OffloadOptions offload = {};
};
// Peak bytes of activations on pipeline rank `rank`, found by walking through the rank's list in
// `schedule`. A sent message is assumed to hold memory during one more computation.
double peak_activations(const Schedule& schedule, std::span<const UnitRange> stages, int rank,
                        const ActivationRequest& request);
// Peak bytes of offloaded activations of `rank`. On a device every offloaded tensor is copied, even
// one that stays. 0 without offloading.
double peak_offloaded(const Schedule& schedule, std::span<const UnitRange> stages, int rank,
                      const ActivationRequest& request);

}  // namespace shoal::parallel
