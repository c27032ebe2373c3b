// Cuts a model's units into stages of consecutive units. Pure; measure_units.h measures the costs.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/parallel/pipeline/chain_stage.h"

namespace shoal::parallel {

struct UnitCost {
  std::string name = {};
  // Elements of each parameter that the unit reads. The key identifies the parameter: tied weights
  // appear in several units, and a stage holds them once.
  std::map<int, std::int64_t> parameters = {};
  std::set<int> frozen = {};  // those that are not trained
  // Bytes per microbatch. `activation_bytes`: kept from forward to backward, including the unit's
  // input. `peak_bytes`: peak while the unit computes, including kept bytes and the incoming
  // gradient. If backward is split: `weight_bytes` are kept from the backward of inputs until the
  // backward of weights, and `split_peak_bytes` replaces `peak_bytes`.
  std::int64_t activation_bytes = 0, peak_bytes = 0, weight_bytes = 0, split_peak_bytes = 0;
  double seconds = 0;  // forward and backward of a microbatch; 0: not measured
  double work = 0;     // replaces seconds if no unit has any; in any unit of measure
};

struct PartitionOptions {
  int stages = 1;
  // SMP's memory_weight: 0 balances only computation, 1 only memory.
  double memory_weight = 0.2;
  double bytes_per_parameter = 16;  // f32 value, gradient and AdamW's two moments
  // For each stage, microbatches whose activations it keeps at its peak
  // (Simulation::peak_microbatches); empty: one.
  std::vector<int> microbatches_kept = {};
  // nn::forward_units(): a group of this many units keeps only the input of its first unit. The
  // UnitCosts must be those of units without checkpointing.
  int checkpoint_group = 0;
};
// True if `unit` begins a checkpoint group or belongs to none. The stage begins at unit `first` of
// a model of `units` units.
bool begins_group(int unit, int first, int units, int checkpoint_group);

struct StageCost {
  std::int64_t parameters = 0;  // elements; shared ones count once
  int microbatches = 1;         // microbatches whose activations the stage keeps
  double memory_bytes = 0;      // bytes of parameters and those activations
  double seconds = 0;           // for one microbatch
  // memory_weight × its share of the memory of all stages + (1 - memory_weight) × its share of the
  // time. The costs of all stages add up to 1. If no time is known, only memory counts, and vice
  // versa.
  double cost = 0;
};

struct Partition {
  std::vector<UnitRange> stages;
  std::vector<StageCost> costs;
  double largest() const;
};

// Cuts the units into contiguous, non-empty stages so that the largest cost is minimal. Memory
// shares are relative to the total memory of all stages of the cut. If several cuts have the same
// largest cost, the sum of squared costs decides, stage by stage.
//
// Measured seconds vary from run to run, but the cut should not. So the cut by work is taken if its
// largest cost in seconds is within kSteady of the best. Throws invalid_argument with the numbers
// if there are more stages than units, or if memory_weight is outside [0, 1].
inline constexpr double kSteady = 0.05;
Partition partition_units(std::span<const UnitCost> units, const PartitionOptions& options);

// By hand: units per stage, as in "4,3,2"; the counts must add up to all units.
Partition partition_by_counts(std::span<const UnitCost> units, std::string_view counts,
                              const PartitionOptions& options);
// By hand in SMP's form: `stage_of` names the stages of some units, the others are on
// `default_stage`. Stages must ascend along the model and all have units; otherwise the error names
// the unit.
Partition partition_by_assignment(std::span<const UnitCost> units,
                                  const std::map<std::string, int>& stage_of, int default_stage,
                                  const PartitionOptions& options);

// One line per stage: its rank in the pipeline, units, parameters, microbatches in flight, memory,
// time ("-": not measured) and share (StageCost::cost).
std::string partition_table(const Partition& partition, std::span<const UnitCost> units,
                            std::span<const int> rank_of_stage);
// "embeddings 0.31 ms, h.0 to h.11 2.10 ms each, head 4.02 ms"; empty: nothing was measured.
std::string unit_times(std::span<const UnitCost> units);

}  // namespace shoal::parallel
