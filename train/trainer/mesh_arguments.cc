#include "shoal/train/trainer/mesh_arguments.h"

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/config/options.h"

namespace shoal {

MeshArguments parse_mesh_arguments(const nlohmann::json& json) {
  MeshArguments mesh;
  std::string placement = "cluster", schedule = "interleaved", optimize = "memory";
  bool ddp = true;
  OptionSet options;
  options.section("mp_parameters")
      .integer("pipeline_parallel_degree", &mesh.pipeline, {.min = 1, .aliases = {"partitions"}})
      .integer("tensor_parallel_degree", &mesh.tensor, {.min = 1})
      .integer("microbatches", &mesh.microbatches, {.min = 1})
      .integer("active_microbatches", &mesh.active_microbatches, {.min = 1})
      .integer("virtual_pipeline_parallel_degree", &mesh.chunks, {.min = 1})
      .string("pipeline", &schedule)
      .string("placement_strategy", &placement)
      .string("optimize", &optimize)
      .boolean("prescaled_batch", &mesh.prescaled_batch)
      .boolean("ddp", &ddp)
      .boolean("offload_activations", &mesh.offload_activations)
      .integer("activation_loading_horizon", &mesh.activation_loading_horizon, {.min = 1});
  options.add_json(json, "mp_parameters");
  options.finish();
  mesh.placement = parallel::Placement(placement);
  mesh.schedule = parallel::parse_schedule_kind(schedule);
  SHOAL_CHECK(optimize == "memory" || optimize == "speed", "optimize is memory or speed, not '{}'",
              optimize);
  mesh.speed = optimize == "speed";
  return mesh;
}

parallel::LayoutRequest mesh_layout(const TrainingArguments& arguments, const MeshArguments& mesh,
                                    int ranks, std::int64_t length) {
  const std::int64_t accumulated = arguments.gradient_accumulation_steps;
  parallel::LayoutRequest request;
  request.ranks = ranks;
  request.pipeline = mesh.pipeline;
  request.tensor = mesh.tensor;
  request.schedule = mesh.schedule;
  request.chunks = mesh.chunks;
  request.microbatches = mesh.microbatches * static_cast<int>(accumulated);
  request.active_microbatches = mesh.active_microbatches;
  request.batch = arguments.per_device_train_batch_size * accumulated;
  request.length = length;
  request.prescaled_batch = mesh.prescaled_batch;
  request.speed = mesh.speed;
  request.checkpointing = arguments.gradient_checkpointing;
  request.offloading = mesh.offload_activations;
  return request;
}

}  // namespace shoal
