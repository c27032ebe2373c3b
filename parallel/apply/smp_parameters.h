// SMP's `parameters`, taken as SMP takes them (library versions 1 and 2: names, aliases, defaults,
// checks), and what they come to here. Every key is carried out, refused with a reason, or accepted
// with a notice where it has no meaning here; docs/smp_parameters.md lists them. Pure, but for the
// partition's file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/optim/loss_scaler.h"
#include "shoal/parallel/apply/legality.h"
#include "shoal/parallel/apply/parallel_model.h"
#include "shoal/parallel/mesh/placement.h"
#include "shoal/parallel/shard/shard_layout.h"

namespace shoal::parallel {

// What the run's other options say of the same things (decision 18: one option, one meaning).
// Nothing: not given, so that SMP's word holds.
struct RunValues {
  bool training = true;
  std::optional<bool> fp16 = {}, bf16 = {};
  std::optional<bool> gradient_checkpointing = {}, activation_offloading = {};
  std::optional<double> max_grad_norm = {};
  std::optional<std::int64_t> seed = {};
  std::optional<std::string> backend = {};  // ddp_backend
};

// Who cuts the model into stages. At most one of `counts`, `first_units`, `by_hand` and `load`.
struct PartitionChoice {
  double memory_weight = 0.8;
  bool measured = true;                       // not with skip_tracing
  std::string counts = {};                    // "4,3,2": units of each stage
  std::vector<std::string> first_units = {};  // of each stage, by name
  bool by_hand = false;                       // SMP's: `stage_of`, the others on default_partition
  std::map<std::string, int> stage_of = {};
  int default_partition = 0;
  std::string file = {};  // partition_file: read with `load`, else written by write_partition()
  bool load = false;
  bool is_automatic() const { return counts.empty() && first_units.empty() && !by_hand && !load; }
};

struct SmpParameters {
  // Mesh; the replicas are what is left of the ranks.
  int pipeline = 1, tensor = 1;
  std::optional<bool> ddp = {};  // LayoutRequest::ddp
  Placement placement = {};
  // Pipeline.
  ScheduleKind schedule = ScheduleKind::interleaved;
  bool forward_only = false;
  int chunks = 1, microbatches = 1;
  int active_microbatches = 0;  // of the interleaved schedule
  PartitionChoice partition = {};
  // Tensor parallelism.
  bool prescaled_batch = false, speed = false;
  // Sharding: sharding.level 0 is none. sharded_degree: over how many replicas, 0: all.
  ShardingOptions sharding = {.level = 0};
  int sharded_degree = 0;
  // Activations.
  int checkpoint_group = 0;  // nn::forward_units()
  bool offload_activations = false;
  int activation_loading_horizon = 4;  // pipeline tasks
  // Agreed with the run's own options; nothing where neither says anything.
  std::optional<bool> fp16 = {}, bf16 = {};
  std::optional<double> max_grad_norm = {};
  std::optional<std::int64_t> seed = {};
  std::optional<std::string> backend = {};
  std::optional<nn::LossScalerOptions> loss_scaling = {};
  std::string collectives = {};  // rules to add to the run's (collectives/select)

  std::vector<std::string> notices = {};  // what has no effect, and why; a line each
};

// `json`: the object of parameters, or {"enabled": ..., "parameters": {...}} around it. Throws
// invalid_argument with every problem, one a line, each naming its key; an unknown key with the
// nearest. `source` is where the object was found, for messages.
SmpParameters parse_smp_parameters(const nlohmann::json& json, const RunValues& run = {},
                                   const std::string& source = "mp_parameters");

// For check_layout(). batch, length: as in LayoutRequest.
LayoutRequest layout_request(const SmpParameters& parameters, int ranks, std::int64_t batch,
                             std::int64_t length);
// `run` with the backend and the rules that the parameters ask for. Throws where `run` has others
// that these cannot stand beside.
collectives::CommunicatorOptions communicator_options(const SmpParameters& parameters,
                                                      collectives::CommunicatorOptions run = {});
// All that the parameters decide beside that; trace (without which units are counted, not
// measured), reducer, offload and tracer are the caller's.
ParallelOptions parallel_options(const SmpParameters& parameters);

// The cut that the parameters ask for: ParallelOptions::partition. `units` are equal on every rank.
// Reads partition.file where it is to be loaded. What cannot be is refused with the unit or stage
// at fault. `bytes_per_parameter`: as in PartitionOptions.
Partition choose_partition(const SmpParameters& parameters, std::span<const UnitCost> units,
                           double bytes_per_parameter = 16);
// Writes a partition where partition.file says, for load_partition; for one rank of the job.
void write_partition(const std::string& path, const Partition& partition,
                     std::span<const UnitCost> units);

// Markdown: a row for each key, from the table that the parser reads. docs/smp_parameters.md has
// it.
std::string smp_parameters_table();

}  // namespace shoal::parallel
