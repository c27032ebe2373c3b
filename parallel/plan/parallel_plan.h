// The layout of a run over its ranks: one description for every front end and for the runtime.
//
//   ParallelPlan plan;
//   plan.mesh.pipeline = 2;                              // 8 ranks: 4 replicas of 2 stages
//   plan.pipeline.schedule = ScheduleKind::one_f_one_b;
//   plan.pipeline.microbatches = 4;
//   plan.sharding.level = 1;
//   Model model(job, causal_lm("gpt2"), plan);           // throws if it does not fit
//
// SMP's parameters, the command line's flat options and Hugging Face's names are parsed into a plan
// (smp_parameters.h). The defaults are data parallelism: each rank has the whole model. Pure.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/optim/loss_scaler_options.h"
#include "shoal/parallel/mesh/placement.h"
#include "shoal/parallel/pipeline/schedule_kind.h"
#include "shoal/parallel/shard/sharding_options.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::parallel {

struct Partition;
struct Schedule;
struct ScheduleOptions;
struct UnitCost;

// The number of replicas is ranks / (pipeline x tensor).
struct MeshPlan {
  int pipeline = 1, tensor = 1;    // ranks of one replica along each axis
  Placement placement = {};        // placement of ranks on the mesh
  std::optional<bool> ddp = true;  // gradients of replicas are summed; nullopt: not specified
  bool operator==(const MeshPlan&) const = default;
};

// How the model is cut into stages. Set at most one of `counts`, `first_units`, `by_hand` and
// `load`.
struct PartitionChoice {
  double memory_weight = 0.8;  // as in PartitionOptions
  bool measured = true;        // cut by measured unit costs; false: by parameter counts
  std::string counts = {};     // "4,3,2": units of each stage
  std::vector<std::string> first_units = {};  // first unit of each stage, by name
  bool by_hand = false;  // cut by `stage_of`; units it does not name go to default_partition
  std::map<std::string, int> stage_of = {};
  int default_partition = 0;
  std::string file = {};  // read if `load` is set, else written by write_partition()
  bool load = false;
  bool is_automatic() const { return counts.empty() && first_units.empty() && !by_hand && !load; }
  bool operator==(const PartitionChoice&) const = default;
};

// How a batch passes through the stages.
struct PipelinePlan {
  ScheduleKind schedule = ScheduleKind::interleaved;
  int microbatches = 1;         // per batch
  int chunks = 1;               // stages per rank
  int active_microbatches = 0;  // ScheduleKind::interleaved only; 0: pipeline ranks + 2
  PartitionChoice partition = {};
  bool operator==(const PipelinePlan&) const = default;
};

// How tensor-parallel ranks share activations.
struct TensorPlan {
  bool prescaled_batch = false;  // the ranks of a group see the same samples, not different ones
  bool speed = false;  // with prescaled_batch: activations are duplicated instead of split
  bool operator==(const TensorPlan&) const = default;
};

// Activations that are recomputed, or kept elsewhere, to save memory.
struct ActivationPlan {
  int checkpoint_group = 0;  // nn::forward_units(); 0: no checkpointing
  bool offload = false;      // keep checkpoints in host memory or in a file until their backward
  int loading_horizon = 4;   // bring checkpoints back this many pipeline tasks ahead
  bool operator==(const ActivationPlan&) const = default;
};

// Element types.
struct PrecisionPlan {
  DType dtype = DType::f32;  // dtype of values and activations; the optimizer updates f32 masters
  std::optional<nn::LossScalerOptions> loss_scaling = {};  // f16; nullopt: GradScaler's defaults
  bool operator==(const PrecisionPlan&) const = default;
};

// Everything that the layout of a run depends on.
struct ParallelPlan {
  MeshPlan mesh = {};
  PipelinePlan pipeline = {};
  TensorPlan tensor = {};
  ShardingOptions sharding = {.level = 0};
  ActivationPlan activations = {};
  PrecisionPlan precision = {};
  bool operator==(const ParallelPlan&) const = default;
};

// The part of the plan that make_schedule() reads (parallel/pipeline/generate.h).
ScheduleOptions schedule_options(const ParallelPlan& plan, bool forward_only = false);

// The cut that plan.pipeline.partition describes. `units` must be equal on every rank;
// `bytes_per_parameter` as in PartitionOptions. `schedule`: the plan's; null: it is made here.
// Reads partition.file if `load` is set. Throws invalid_argument with the unit or stage at fault;
// not_found or corrupt_data for the file.
Partition choose_partition(const ParallelPlan& plan, std::span<const UnitCost> units,
                           double bytes_per_parameter = 16, const Schedule* schedule = nullptr);
// Writes a partition for `load`; call it on one rank of the job. Throws io.
void write_partition(const std::string& path, const Partition& partition,
                     std::span<const UnitCost> units);

// The plan under SMP's names, without defaults. parse_smp_parameters() turns it into an equal plan.
// Runs print it and checkpoints keep it.
nlohmann::ordered_json plan_json(const ParallelPlan& plan);

}  // namespace shoal::parallel
