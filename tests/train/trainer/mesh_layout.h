// How ranks divide into replicas, pipeline stages and tensor-parallel parts, and a toy run on them.
#pragma once

#include <string>

#include "train/trainer/toy_training.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shoal::test {

inline constexpr std::int64_t kGlobalBatch = 8;

// Two or four ranks can share the four heads. There are four units.
inline nn::DecoderConfig mesh_config() {
  nn::DecoderConfig config = toy_config();
  config.num_attention_heads = 4;
  return config;
}

struct Layout {
  int rdp = 1, pp = 1, tp = 1;
  std::int64_t microbatches = 1, accumulated = 1;
  nlohmann::json more = nlohmann::json::object();  // further mp_parameters
  bool on_mesh = true;                             // false: the data-parallel engine on rdp ranks

  int ranks() const { return rdp * pp * tp; }
  std::string text() const {
    return fmt::format("{}rdp{} pp{} tp{} m{} a{} {}", on_mesh ? "" : "no mesh, ", rdp, pp, tp,
                       microbatches, accumulated, more.dump());
  }
  // The global batch is the same for every layout.
  void apply(TrainingArguments& arguments) const {
    const bool shares = tp > 1 && more.value("prescaled_batch", false);
    const std::int64_t devices = rdp * (shares ? 1 : tp) * accumulated;
    arguments.per_device_train_batch_size = kGlobalBatch / devices;
    arguments.gradient_accumulation_steps = accumulated;
    arguments.mp_parameters = nlohmann::json::object();
    if (!on_mesh) return;
    arguments.mp_parameters = more;
    arguments.mp_parameters["ddp"] = true;
    arguments.mp_parameters["pipeline_parallel_degree"] = pp;
    arguments.mp_parameters["tensor_parallel_degree"] = tp;
    arguments.mp_parameters["microbatches"] = microbatches;
  }
};

inline const nlohmann::json kShared = {{"prescaled_batch", true}};
inline const nlohmann::json kSpeed = {{"prescaled_batch", true}, {"optimize", "speed"}};
inline const nlohmann::json kOptimizerSharded = {{"shard_optimizer_state", true}};
// Also shards all parameters but the smallest. Two of four replicas share a copy.
inline const nlohmann::json kParametersSharded = {{"sharded_data_parallel_degree", 2},
                                                  {"sdp_param_persistence_threshold", 32}};

inline Outcome run_on(const Layout& layout, TrainingArguments arguments, RunOptions options) {
  layout.apply(arguments);
  options.ranks = layout.ranks();
  options.config = mesh_config();
  return run(arguments, options);
}

inline TrainingArguments arguments_for(const std::string& output, std::int64_t steps) {
  TrainingArguments arguments = toy_arguments(output);
  arguments.max_steps = steps;
  return arguments;
}

}  // namespace shoal::test
