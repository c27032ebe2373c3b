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
  std::int64_t activation_bytes = 0;  // kept from the forward of a microbatch until its backward
  double seconds = 0;                 // forward and backward of a microbatch
};

struct PartitionOptions {
  int stages = 1;
  // SMP's memory_weight: 0 balances computation only, 1 memory only.
  double memory_weight = 0.2;
  double bytes_per_parameter = 16;  // f32 value, gradient and AdamW's two moments
  // Microbatches whose activations each stage keeps at its peak (Simulation::peak_microbatches);
  // empty: one.
  std::vector<int> microbatches_kept = {};
};

struct StageCost {
  std::int64_t parameters = 0;  // elements, shared ones once
  double memory_bytes = 0, seconds = 0;
  // memory_weight × its share of the model's memory + (1 - memory_weight) × its share of the time.
  double cost = 0;
};

struct Partition {
  std::vector<UnitRange> stages;
  std::vector<StageCost> costs;
  double largest() const;
};

// Contiguous segments, none empty, whose largest cost is the smallest possible; among those, costs
// as even as a stage-by-stage choice makes them. More stages than units, or a memory_weight outside
// [0, 1]: invalid_argument with the numbers.
Partition partition_units(std::span<const UnitCost> units, const PartitionOptions& options);

// By hand: so many units a stage, "4,3,2", all units and no others.
Partition partition_by_counts(std::span<const UnitCost> units, std::string_view counts,
                              const PartitionOptions& options);
// By hand as SMP has it: the stage of units by name, the others on `default_stage`. Stages must
// ascend along the model and all have units; else the unit that breaks it is named.
Partition partition_by_assignment(std::span<const UnitCost> units,
                                  const std::map<std::string, int>& stage_of, int default_stage,
                                  const PartitionOptions& options);

// A line for each stage: its rank in the pipeline, units, parameters, memory, time and share.
std::string partition_table(const Partition& partition, std::span<const UnitCost> units,
                            std::span<const int> rank_of_stage);

}  // namespace shoal::parallel
