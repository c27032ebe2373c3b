// The rules of model parallelism for shoal.torch.parallel: parameters, placements, partitions and
// memory.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "native.h"
#include <nlohmann/json.hpp>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "shoal/parallel/apply/layout_memory.h"
#include "shoal/parallel/mesh/placement.h"
#include "shoal/parallel/pipeline/generate.h"
#include "shoal/parallel/pipeline/partition.h"
#include "shoal/parallel/plan/parallel_plan.h"
#include "shoal/parallel/plan/smp_keys.h"
#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/config/options.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"

namespace py = pybind11;

namespace shoal::python {
namespace {

using parallel::Placement;
using Json = nlohmann::json;
using Numbers = std::tuple<int, int, int>;  // rdp, pp, tp

parallel::MeshShape shape_of(const Numbers& n) {
  return {.rdp = std::get<0>(n), .pp = std::get<1>(n), .tp = std::get<2>(n)};
}

parallel::Axes axes_of(const std::string& axis) {
  using namespace parallel;
  static const std::map<std::string, Axes> known = {
      {"tp", kTp}, {"pp", kPp}, {"rdp", kRdp}, {"mp", kMp}, {"dp", kDp}, {"world", kMp | kRdp}};
  const auto found = known.find(axis);
  SHOAL_CHECK(found != known.end(), "axis is {}; it takes world, tp, pp, rdp, mp or dp", axis);
  return found->second;
}

template <typename T>
Json optional(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

void partition_keys(const parallel::PartitionChoice& choice, Json& keys) {
  keys["memory_weight"] = choice.memory_weight;
  keys["skip_tracing"] = !choice.measured;
  keys["default_partition"] = choice.default_partition;
  keys["partition_file"] = choice.file;
  keys["load_partition"] = choice.load;
  keys["partition_assignment"] = choice.stage_of;
}

void sharding_keys(const parallel::ShardingOptions& sharding, Json& keys) {
  keys["shard_optimizer_state"] = sharding.level == 1;
  // 0 means all replicas.
  const int degree = sharding.level >= 2 ? sharding.degree : 1;
  keys["sharded_data_parallel_degree"] = keys["hybrid_shard_degree"] = degree;
  keys["sharding_strategy"] = sharding.level < 2    ? "NO_SHARD"
                              : sharding.level == 2 ? "SHARD_GRAD_OP"
                                                    : "FULL_SHARD";
  keys["sdp_reduce_bucket_size"] = sharding.bucket_elements;
  keys["sdp_param_persistence_threshold"] = sharding.persistence_threshold;
  keys["sdp_max_live_parameters"] = sharding.max_live_parameters;
}

void precision_keys(const parallel::SmpParameters& parameters, Json& keys) {
  keys["fp16"] = parameters.fp16.value_or(false);
  keys["bf16"] = parameters.bf16.value_or(false);
  const auto& scaling = parameters.plan.precision.loss_scaling;
  const bool is_static = scaling && !scaling->dynamic;
  keys["static_loss_scale"] = is_static ? Json(scaling->init_scale) : Json();
  keys["dynamic_loss_scale"] = !is_static;
  const nn::LossScalerOptions dynamic = scaling.value_or(nn::LossScalerOptions());
  keys["dynamic_loss_args"] = {{"init_scale", dynamic.init_scale},
                               {"scale_factor", dynamic.factor},
                               {"scale_window", dynamic.window},
                               {"min_scale", dynamic.min_scale},
                               {"delayed_shift", dynamic.delayed_shift}};
}

std::string activation_checkpointing(int group) {
  return group == 0 ? "none" : group == 1 ? "each" : "group_" + std::to_string(group);
}

// Every key with its resolved value. Null: the key has no effect or no value.
Json resolved_keys(const parallel::SmpParameters& parameters, const parallel::SmpRaw& raw) {
  const parallel::ParallelPlan& plan = parameters.plan;
  Json keys;
  for (const parallel::SmpKey& key : parallel::smp_keys()) {
    Json& value = keys[std::string(key.name)];
    if (const auto* flag = std::get_if<parallel::SmpOnlyFlag>(&key.takes)) value = flag->value;
    if (const auto* number = std::get_if<parallel::SmpOnlyNumber>(&key.takes))
      value = number->value;
  }
  keys["pipeline_parallel_degree"] = plan.mesh.pipeline;
  keys["tensor_parallel_degree"] = plan.mesh.tensor;
  keys["ddp"] = plan.mesh.ddp.value_or(false);
  keys["horovod"] = raw.horovod.value_or(false);
  keys["placement_strategy"] = plan.mesh.placement.letters();
  keys["microbatches"] = plan.pipeline.microbatches;
  keys["pipeline"] = parallel::name(plan.pipeline.schedule);
  keys["virtual_pipeline_parallel_degree"] = plan.pipeline.chunks;
  keys["active_microbatches"] = plan.pipeline.active_microbatches;
  keys["optimize"] = plan.tensor.speed ? "speed" : "memory";
  keys["auto_partition"] = raw.auto_partition.value_or(plan.pipeline.partition.is_automatic());
  keys["prescaled_batch"] = plan.tensor.prescaled_batch;
  keys["sdp_hierarchical_allgather"] = parameters.collectives.empty();
  keys["sdp_gradient_clipping"] = optional(parameters.max_grad_norm);
  keys["activation_checkpointing"] = activation_checkpointing(plan.activations.checkpoint_group);
  keys["offload_activations"] = keys["sm_activation_offloading"] = plan.activations.offload;
  keys["activation_loading_horizon"] = plan.activations.loading_horizon;
  keys["random_seed"] = optional(parameters.seed);
  keys["ddp_dist_backend"] = parameters.backend.value_or("auto");
  keys["fp16_params"] = raw.fp16_params.value_or(false);
  partition_keys(plan.pipeline.partition, keys);
  sharding_keys(plan.sharding, keys);
  precision_keys(parameters, keys);
  for (const parallel::SmpKey& key : parallel::smp_keys())
    if (!key.alias.empty()) keys[std::string(key.alias)] = keys[std::string(key.name)];
  return keys;
}

std::string parse_parameters(const std::string& text, const std::string& source) {
  const Json json = parse_json(text, source);
  const parallel::SmpParameters parameters =
      parallel::parse_smp_parameters(json, {.training = false, .pytorch = true}, source);
  parallel::SmpRaw raw;
  OptionSet options;
  parallel::declare_smp_keys(options, raw);
  options.add_json(parallel::given_smp_keys(json, source).value_or(Json::object()), source);
  options.finish();
  const Json out = {{"keys", resolved_keys(parameters, raw)},
                    {"plan", parallel::plan_json(parameters.plan)},
                    {"sharding_level", parameters.plan.sharding.level},
                    {"collectives", parameters.collectives},
                    {"notices", parameters.notices}};
  return out.dump();
}

using Units = std::vector<parallel::UnitCost>;

template <typename T>
T item_or(const py::dict& unit, const char* name, const T& fallback) {
  return unit.contains(name) ? unit[name].cast<T>() : fallback;
}

Units units_of(const std::vector<py::dict>& dicts) {
  Units units;
  for (const py::dict& unit : dicts)
    units.push_back({.name = unit["name"].cast<std::string>(),
                     .parameters = item_or(unit, "parameters", std::map<int, std::int64_t>()),
                     .activation_bytes = item_or<std::int64_t>(unit, "activation_bytes", 0),
                     .peak_bytes = item_or<std::int64_t>(unit, "peak_bytes", 0),
                     .seconds = item_or<double>(unit, "seconds", 0),
                     .work = item_or<double>(unit, "work", 0)});
  return units;
}

parallel::Partition partition(const std::vector<py::dict>& units, int stages, double memory_weight,
                              double bytes_per_parameter, std::vector<int> microbatches_kept) {
  return parallel::partition_units(units_of(units),
                                   {.stages = stages,
                                    .memory_weight = memory_weight,
                                    .bytes_per_parameter = bytes_per_parameter,
                                    .microbatches_kept = std::move(microbatches_kept)});
}

std::string table(const parallel::Partition& partition, const std::vector<py::dict>& units,
                  std::vector<int> rank_of_stage) {
  if (rank_of_stage.empty())
    for (int stage = 0; stage < std::ssize(partition.stages); ++stage)
      rank_of_stage.push_back(stage);
  SHOAL_CHECK(std::ssize(rank_of_stage) == std::ssize(partition.stages),
              "rank_of_stage has {} ranks for {} stages", rank_of_stage.size(),
              partition.stages.size());
  return parallel::partition_table(partition, units_of(units), rank_of_stage);
}

void define_mesh(py::module_& module) {
  py::class_<Placement>(module, "Placement")
      .def(py::init<std::string_view>(), py::arg("text") = "cluster")
      .def_property_readonly("letters", &Placement::letters)
      .def(
          "place_of",
          [](const Placement& placement, int rank, const Numbers& shape) {
            const parallel::MeshPlace place = placement.place_of(rank, shape_of(shape));
            return Numbers(place.rdp, place.pp, place.tp);
          },
          py::arg("rank"), py::arg("shape"))
      .def(
          "group",
          [](const Placement& placement, int rank, const std::string& axis, const Numbers& shape) {
            return placement.group(rank, axes_of(axis), shape_of(shape));
          },
          py::arg("rank"), py::arg("axis"), py::arg("shape"));
  module.def(
      "mesh_shape",
      [](int ranks, int pipeline, int tensor) {
        const parallel::MeshShape shape = parallel::mesh_shape(ranks, pipeline, tensor);
        return Numbers(shape.rdp, shape.pp, shape.tp);
      },
      py::arg("ranks"), py::arg("pipeline_parallel_degree"), py::arg("tensor_parallel_degree"));
}

void define_partition(py::module_& module) {
  using parallel::Partition, parallel::StageCost;
  py::class_<StageCost>(module, "StageCost")
      .def_readonly("parameters", &StageCost::parameters)
      .def_readonly("microbatches", &StageCost::microbatches)
      .def_readonly("memory_bytes", &StageCost::memory_bytes)
      .def_readonly("seconds", &StageCost::seconds)
      .def_readonly("cost", &StageCost::cost);
  py::class_<Partition>(module, "Partition")
      .def_property_readonly("stages",
                             [](const Partition& partition) {
                               std::vector<std::pair<int, int>> ranges;
                               for (const parallel::UnitRange& range : partition.stages)
                                 ranges.emplace_back(range.first, range.last);
                               return ranges;
                             })
      .def_readonly("costs", &Partition::costs);
  module.def("partition_units", &partition, py::arg("units"), py::kw_only(), py::arg("stages"),
             py::arg("memory_weight") = parallel::PartitionOptions().memory_weight,
             py::arg("bytes_per_parameter") = parallel::PartitionOptions().bytes_per_parameter,
             py::arg("microbatches_kept") = std::vector<int>());
  module.def("partition_table", &table, py::arg("partition"), py::arg("units"),
             py::arg("rank_of_stage") = std::vector<int>());
}

std::tuple<double, double, double> state_memory(std::int64_t elements, std::int64_t persistent,
                                                const std::string& dtype, int level, int shards) {
  const parallel::StateMemory memory = parallel::state_memory({.elements = elements,
                                                               .persistent = persistent,
                                                               .dtype = parse_dtype(dtype),
                                                               .level = level,
                                                               .shards = shards,
                                                               .states = 2 * elements});
  return {memory.parameters, memory.gradients, memory.optimizer};
}

// `loading_horizon`: offloaded inputs that are back in memory before their backward. PyTorch's
// offloading writes in the computing thread, so none are on their way out.
double peak_activations(const std::vector<py::dict>& units,
                        const std::vector<std::pair<int, int>>& stages, int rank,
                        const std::string& schedule, int microbatches, double stream_bytes,
                        int checkpoint_group, bool offloads, int loading_horizon) {
  std::vector<parallel::UnitRange> ranges;
  for (const auto& [first, last] : stages) ranges.push_back({first, last});
  const Units costs = units_of(units);
  return parallel::peak_activations(
      parallel::make_schedule({.kind = parallel::parse_schedule_kind(schedule),
                               .ranks = static_cast<int>(std::ssize(ranges)),
                               .microbatches = microbatches}),
      ranges, rank,
      {.units = costs,
       .stream_bytes = stream_bytes,
       .checkpoint_group = checkpoint_group,
       .offloads = offloads,
       .only_inputs = true,
       .offload = {.min_bytes = 1, .max_leaving = 0, .max_returning = loading_horizon}});
}

void define_memory(py::module_& module) {
  module.def("state_memory", &state_memory, py::kw_only(), py::arg("elements"),
             py::arg("persistent") = 0, py::arg("dtype") = "f32", py::arg("level") = 0,
             py::arg("shards") = 1);
  module.def("peak_activations", &peak_activations, py::arg("units"), py::kw_only(),
             py::arg("stages"), py::arg("rank") = 0, py::arg("schedule") = "simple",
             py::arg("microbatches") = 1, py::arg("stream_bytes"), py::arg("checkpoint_group") = 0,
             py::arg("offloads") = false, py::arg("loading_horizon") = 0);
}

}  // namespace

void define_parallel(py::module_& module) {
  module.def("parse_smp_parameters", &parse_parameters, py::arg("parameters"),
             py::arg("source") = "mp_parameters");
  define_mesh(module);
  define_partition(module);
  define_memory(module);
}

}  // namespace shoal::python
