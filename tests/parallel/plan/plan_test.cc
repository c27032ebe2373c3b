// A plan as JSON with SMP's names, written and read.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/parallel/plan/parallel_plan.h"
#include "shoal/parallel/plan/smp_parameters.h"

namespace shoal::parallel {
namespace {

using nlohmann::json;

ParallelPlan parsed(const json& parameters) { return parse_smp_parameters(parameters).plan; }

TEST(ParallelPlan, ComesBackFromItsJson) {
  const json rows[] = {
      json::object(),
      {{"ddp", true}, {"partitions", 2}, {"microbatches", 8}, {"placement_strategy", "spread"}},
      {{"partitions", 4}, {"microbatches", 8}, {"active_microbatches", 3}},
      {{"partitions", 2}, {"pipeline", "simple"}, {"optimize", "speed"}},
      {{"partitions", 2}, {"pipeline", "zero_bubble_v"}, {"memory_weight", 0.5}},
      {{"partitions", 2},
       {"pipeline", "virtual_interleaved"},
       {"virtual_pipeline_parallel_degree", 3},
       {"manual_partition", {3, 2, 2, 2, 2, 2}}},
      {{"partitions", 2}, {"manual_partition", {"embeddings", "h.3"}}, {"skip_tracing", true}},
      {{"partitions", 2},
       {"auto_partition", false},
       {"partition_assignment", {{"embeddings", 0}, {"h.0", 0}}},
       {"default_partition", 1}},
      {{"partitions", 2}, {"load_partition", true}, {"partition_file", "cut.json"}},
      {{"tensor_parallel_degree", 2}, {"ddp", true}, {"prescaled_batch", true}},
      {{"shard_optimizer_state", true}, {"sdp_reduce_bucket_size", 1000}},
      {{"sharding_strategy", "SHARD_GRAD_OP"}},
      {{"sharded_data_parallel_degree", 4}, {"sdp_max_live_parameters", 2000}},
      {{"sharding_strategy", "FULL_SHARD"}, {"sdp_param_persistence_threshold", 0}},
      {{"activation_checkpointing", "each"},
       {"offload_activations", true},
       {"activation_loading_horizon", 6}},
      {{"activation_checkpointing", "contiguous"}, {"bf16", true}},
      {{"fp16", true}, {"static_loss_scale", 128}},
      {{"fp16", true}, {"dynamic_loss_args", {{"init_scale", 1024}, {"scale_window", 10}}}},
  };
  for (const json& row : rows) {
    const ParallelPlan plan = parsed(row);
    const nlohmann::ordered_json written = plan_json(plan);
    EXPECT_EQ(parsed(json(written)), plan) << row << " became " << written;
  }
}

TEST(ParallelPlan, JsonLeavesDefaultsOut) {
  EXPECT_EQ(plan_json(parsed(json::object())).dump(), "{}");
  EXPECT_EQ(plan_json(parsed({{"partitions", 2}, {"ddp", true}, {"pipeline", "1f1b"}})).dump(),
            R"({"pipeline_parallel_degree":2,"ddp":true,"pipeline":"1f1b"})");
}

// A plan built in code is data parallelism by default.
TEST(ParallelPlan, DefaultIsDataParallelism) {
  const ParallelPlan plan;
  EXPECT_EQ(plan.mesh.pipeline * plan.mesh.tensor * plan.pipeline.chunks, 1);
  EXPECT_EQ(plan.sharding.level, 0);
  EXPECT_EQ(plan.mesh.ddp, true);
}

}  // namespace
}  // namespace shoal::parallel
