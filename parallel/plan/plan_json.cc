// A plan under SMP's names: the inverse of smp_parameters.cc.
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/parallel/plan/parallel_plan.h"

namespace shoal::parallel {
namespace {

using OrderedJson = nlohmann::ordered_json;

class Writer {
 public:
  explicit Writer(const ParallelPlan& plan) : plan_(plan) {}

  OrderedJson write() {
    mesh();
    const std::size_t before = json_.size();
    pipeline();
    partition();
    if (json_.size() > before)  // SMP's pipeline keys require the degree, even if it is 1
      json_["pipeline_parallel_degree"] = plan_.mesh.pipeline;
    put("prescaled_batch", plan_.tensor.prescaled_batch, false);
    put("optimize", std::string(plan_.tensor.speed ? "speed" : "memory"), std::string("memory"));
    sharding();
    activations();
    precision();
    return std::move(json_);
  }

 private:
  template <typename T>
  void put(const char* name, const T& value, const T& unset) {
    if (value != unset) json_[name] = value;
  }

  void mesh() {
    const MeshPlan& mesh = plan_.mesh;
    put("pipeline_parallel_degree", mesh.pipeline, 1);
    put("tensor_parallel_degree", mesh.tensor, 1);
    put("placement_strategy", mesh.placement.letters(), Placement().letters());
    if (mesh.ddp) json_["ddp"] = *mesh.ddp;
    put("microbatches", plan_.pipeline.microbatches, 1);
  }

  void pipeline() {
    const PipelinePlan& pipeline = plan_.pipeline;
    put("pipeline", std::string(name(pipeline.schedule)),
        std::string(name(ScheduleKind::interleaved)));
    put("virtual_pipeline_parallel_degree", pipeline.chunks,
        pipeline.schedule == ScheduleKind::zero_bubble_v ? 2 : 1);
    if (pipeline.active_microbatches > 0)
      put("active_microbatches", pipeline.active_microbatches, plan_.mesh.pipeline + 2);
  }

  void partition() {
    const PartitionChoice& choice = plan_.pipeline.partition;
    put("memory_weight", choice.memory_weight, plan_.tensor.speed ? 0.2 : 0.8);
    put("skip_tracing", !choice.measured, false);
    if (!choice.counts.empty()) json_["manual_partition"] = choice.counts;
    if (!choice.first_units.empty()) json_["manual_partition"] = choice.first_units;
    if (choice.by_hand) {
      json_["auto_partition"] = false;
      json_["partition_assignment"] = choice.stage_of;
      json_["default_partition"] = choice.default_partition;
    }
    put("partition_file", choice.file, std::string());
    put("load_partition", choice.load, false);
  }

  void sharding() {
    const ShardingOptions& sharding = plan_.sharding;
    const ShardingOptions unset;
    put("shard_optimizer_state", sharding.level == 1, false);
    if (sharding.level >= 2) {
      json_["sharding_strategy"] = sharding.level == 2 ? "SHARD_GRAD_OP" : "FULL_SHARD";
      put("sharded_data_parallel_degree", sharding.degree, 0);  // 0: all replicas
    }
    put("sdp_reduce_bucket_size", sharding.bucket_elements, unset.bucket_elements);
    put("sdp_param_persistence_threshold", sharding.persistence_threshold,
        unset.persistence_threshold);
    put("sdp_max_live_parameters", sharding.max_live_parameters, unset.max_live_parameters);
  }

  void activations() {
    const ActivationPlan& activations = plan_.activations;
    if (activations.checkpoint_group > 0)
      json_["activation_checkpointing"] =
          activations.checkpoint_group == 1 ? "each"
                                            : fmt::format("group_{}", activations.checkpoint_group);
    if (!activations.offload) return;
    json_["offload_activations"] = true;
    json_["activation_loading_horizon"] = activations.loading_horizon;
  }

  void precision() {
    put("bf16", plan_.precision.dtype == DType::bf16, false);
    put("fp16", plan_.precision.dtype == DType::f16, false);
    if (!plan_.precision.loss_scaling) return;
    const nn::LossScalerOptions& scaling = *plan_.precision.loss_scaling;
    if (!scaling.dynamic) {
      json_["static_loss_scale"] = scaling.init_scale;
      return;
    }
    json_["dynamic_loss_args"] = {{"init_scale", scaling.init_scale},
                                  {"scale_factor", scaling.factor},
                                  {"scale_window", scaling.window},
                                  {"min_scale", scaling.min_scale},
                                  {"delayed_shift", scaling.delayed_shift}};
  }

  const ParallelPlan& plan_;
  OrderedJson json_ = OrderedJson::object();
};

}  // namespace

nlohmann::ordered_json plan_json(const ParallelPlan& plan) { return Writer(plan).write(); }

}  // namespace shoal::parallel
