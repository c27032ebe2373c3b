// Which consecutive units of a model make up each stage. Pure; what units cost is measured by
// measure_units.h.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/parallel/pipeline/chain_stage.h"

namespace shoal::parallel {

struct UnitCost {
  std::string name = {};
  // Elements of each parameter that the unit reads. A number names the parameter: tied weights
  // appear in several units, and a stage holds them once.
  std::map<int, std::int64_t> parameters = {};
  // Of a microbatch: what is kept from the forward until the backward, the unit's input included;
  // the most while the unit computes, with what is kept and the gradient it gets; and where
  // backward is split, what is kept from the inputs' until the weights', and the most then.
  std::int64_t activation_bytes = 0, peak_bytes = 0, weight_bytes = 0, split_peak_bytes = 0;
  double seconds = 0;  // forward and backward of a microbatch; 0: not measured
  double work = 0;     // what stands for seconds where no unit has any; in any measure
};

struct PartitionOptions {
  int stages = 1;
  // SMP's memory_weight: 0 balances computation only, 1 memory only.
  double memory_weight = 0.2;
  double bytes_per_parameter = 16;  // f32 value, gradient and AdamW's two moments
  // Microbatches whose activations each stage keeps at its peak (Simulation::peak_microbatches);
  // empty: one.
  std::vector<int> microbatches_kept = {};
  // nn::forward_units(): so many units of a stage keep the first one's input, and no more. What
  // each keeps alone is UnitCost's then.
  int checkpoint_group = 0;
};
// Whether that unit is the first of a checkpoint's group, or of none, in a stage from `first` on of
// a model of `units`.
bool begins_group(int unit, int first, int units, int checkpoint_group);

struct StageCost {
  std::int64_t parameters = 0;  // elements, shared ones once
  int microbatches = 1;         // whose activations it keeps
  double memory_bytes = 0;      // parameters' and those activations'
  double seconds = 0;           // of one microbatch
  // memory_weight × its share of the memory of all stages + (1 - memory_weight) × its share of the
  // time: over all stages, 1. Where no time is known memory alone counts, and the other way round.
  double cost = 0;
};

struct Partition {
  std::vector<UnitRange> stages;
  std::vector<StageCost> costs;
  double largest() const;
};

// Contiguous segments, none empty, whose largest cost is the smallest possible where the memory of
// all stages is what theirs adds up to; among those, costs as even as a stage-by-stage choice makes
// them. Measured seconds differ a little each time, and a
// cut should not: where the one by work instead of seconds is as good within kSteady of the largest
// cost, it is taken. More stages than units, or a memory_weight outside [0, 1]: invalid_argument
// with the numbers.
inline constexpr double kSteady = 0.05;
Partition partition_units(std::span<const UnitCost> units, const PartitionOptions& options);

// By hand: so many units a stage, "4,3,2", all units and no others.
Partition partition_by_counts(std::span<const UnitCost> units, std::string_view counts,
                              const PartitionOptions& options);
// By hand as SMP has it: the stage of units by name, the others on `default_stage`. Stages must
// ascend along the model and all have units; else the unit that breaks it is named.
Partition partition_by_assignment(std::span<const UnitCost> units,
                                  const std::map<std::string, int>& stage_of, int default_stage,
                                  const PartitionOptions& options);

// A line for each stage: its rank in the pipeline, units, parameters, microbatches in flight,
// memory, time ("-": not measured) and share (StageCost::cost).
std::string partition_table(const Partition& partition, std::span<const UnitCost> units,
                            std::span<const int> rank_of_stage);
// "embeddings 0.31 ms, h.0 to h.11 2.10 ms each, head 4.02 ms"; empty: nothing was measured.
std::string unit_times(std::span<const UnitCost> units);

}  // namespace shoal::parallel
