// What a rank of a layout holds, by tag, from what its parameters and its units take: the formulas
// of docs/parallelism.md ("What a rank holds"). Pure; bench/parallel prints them beside what was
// counted.
#pragma once

#include <cstdint>
#include <span>

#include "shoal/parallel/activation/offload.h"
#include "shoal/parallel/apply/parallel_model.h"
#include "shoal/parallel/pipeline/partition.h"
#include "shoal/parallel/pipeline/schedule.h"

namespace shoal::parallel {

struct StateRequest {
  std::int64_t elements = 0;    // of this rank's parameters: its stages', its parts, each once
  std::int64_t persistent = 0;  // of these, what level 3 keeps whole (persistence_threshold)
  DType dtype = DType::f32;     // of values
  int level = 0;                // of sharding
  int shards = 1;               // ranks that share a copy
  int moments = 2;              // f32 numbers of the update rule for each element; AdamW's
  bool masters = true;          // of 16-bit values; false with stochastic rounding
};
// Bytes between two steps, all parameters trainable.
struct StateMemory {
  double parameters = 0, gradients = 0, optimizer = 0;
};
StateMemory state_memory(const StateRequest& request);
// What a rank's model comes to.
StateRequest state_request(const ParallelModel& model, int moments = 2);

// What a rank holds between two steps to the byte, as its MemoryResource counts it: state_memory()
// and the gaps of the layout. Parameters begin at cache lines in gradients, masters and moments; a
// bucket divides into its owners' parts of whole lines. Of a rule with `moments` in blocks of their
// own (nn::Optimizer); LAMB's scratch is not in it.
StateMemory exact_state_memory(const ParallelModel& model, int moments = 2);

struct ActivationRequest {
  // Of one microbatch, measured without checkpointing and offloading (measure_units()); with
  // MeasureOptions::split_backward where the schedule splits backwards.
  std::span<const UnitCost> units;
  double stream_bytes = 0;   // of the residual stream between two units
  int checkpoint_group = 0;  // nn::forward_units()
  bool offloads = false;     // what checkpoints keep
  OffloadOptions offload = {};
};
// The most bytes of activations that `rank` of the pipeline has at a time: it goes through its list
// of `schedule`. A message that leaves is taken to live through one computation more.
double peak_activations(const Schedule& schedule, std::span<const UnitRange> stages, int rank,
                        const ActivationRequest& request);
// The most bytes of activations that `rank` has elsewhere at a time: on a device all that leaves is
// copied, what stays on its way included. 0 where nothing is offloaded.
double peak_offloaded(const Schedule& schedule, std::span<const UnitRange> stages, int rank,
                      const ActivationRequest& request);

}  // namespace shoal::parallel
