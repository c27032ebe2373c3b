// SMP's configuration: the plan for each key, values that SMP refuses, and features that Shoal
// lacks.
#include "shoal/parallel/plan/smp_parameters.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "support/error_text.h"
#include "support/source_tree.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/parallel/pipeline/partition.h"
#include "shoal/parallel/plan/legality.h"

namespace shoal::parallel {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SmpParameters parse(const char* text, const RunValues& run = {}) {
  return parse_smp_parameters(json::parse(text), run);
}
std::string said(const char* text, const RunValues& run = {}) {
  return test::error_text([&] { parse(text, run); });
}
// Each row: a configuration, and a part of the expected message.
using Rows = std::vector<std::pair<const char*, const char*>>;
void expect_refused(const Rows& rows, const RunValues& run = {}) {
  for (const auto& [text, part] : rows) EXPECT_THAT(said(text, run), HasSubstr(part)) << text;
}

std::vector<UnitCost> units_of(int count) {
  std::vector<UnitCost> units;
  for (int i = 0; i < count; ++i)
    units.push_back({.name = i == 0           ? "embeddings"
                             : i == count - 1 ? "head"
                                              : fmt::format("h.{}", i - 1),
                     .parameters = {{i, 10}},
                     .seconds = 1});
  return units;
}
std::vector<int> counts_of(const Partition& partition) {
  std::vector<int> counts;
  for (const UnitRange& stage : partition.stages) counts.push_back(stage.last - stage.first);
  return counts;
}

TEST(SmpParameters, DefaultsAreSmps) {
  const SmpParameters p = parse("{}");
  EXPECT_EQ(p.plan.mesh.pipeline, 1);
  EXPECT_EQ(p.plan.mesh.tensor, 1);
  EXPECT_EQ(p.plan.mesh.placement.letters(), "DPT");
  EXPECT_EQ(p.plan.pipeline.schedule, ScheduleKind::interleaved);
  EXPECT_EQ(p.plan.pipeline.chunks, 1);
  EXPECT_EQ(p.plan.pipeline.microbatches, 1);
  EXPECT_EQ(p.plan.pipeline.active_microbatches, 3);
  EXPECT_EQ(p.plan.pipeline.partition.memory_weight, 0.8);
  EXPECT_TRUE(p.plan.pipeline.partition.measured);
  EXPECT_FALSE(p.plan.tensor.prescaled_batch);
  EXPECT_FALSE(p.plan.tensor.speed);
  EXPECT_EQ(p.plan.sharding.level, 0);
  EXPECT_EQ(p.plan.sharding.bucket_elements, 500'000'000);
  EXPECT_EQ(p.plan.sharding.persistence_threshold, 1'000'000);
  EXPECT_EQ(p.plan.sharding.max_live_parameters, 1'000'000'000);
  EXPECT_EQ(p.plan.activations.checkpoint_group, 0);
  EXPECT_FALSE(p.plan.activations.offload);
  EXPECT_EQ(p.plan.activations.loading_horizon, 4);
  EXPECT_EQ(p.collectives, "");
  EXPECT_FALSE(p.fp16 || p.bf16 || p.max_grad_norm || p.seed || p.backend ||
               p.plan.precision.loss_scaling);
  EXPECT_THAT(p.notices, IsEmpty());
}

// The examples of the SageMaker SDK's documentation, unchanged.
TEST(SmpParameters, TakesSmpsExamples) {
  const SmpParameters p = parse(R"({"microbatches": 4, "placement_strategy": "spread",
      "pipeline": "interleaved", "optimize": "speed", "partitions": 2, "ddp": true})");
  EXPECT_EQ(p.plan.mesh.pipeline, 2);
  EXPECT_EQ(p.plan.pipeline.microbatches, 4);
  EXPECT_EQ(p.plan.mesh.placement.letters(), "TPD");
  EXPECT_TRUE(p.plan.tensor.speed);
  EXPECT_EQ(p.plan.pipeline.partition.memory_weight, 0.2);
  EXPECT_EQ(p.plan.pipeline.active_microbatches, 4);
  EXPECT_THAT(p.notices, IsEmpty());
  const SmpParameters sharded = parse(R"({"enabled": true, "parameters": {"ddp": true,
      "sharded_data_parallel_degree": 16, "sdp_reduce_bucket_size": 5e8,
      "sdp_param_persistence_threshold": 1e6, "sdp_max_live_parameters": 1e9,
      "sdp_hierarchical_allgather": true, "sdp_gradient_clipping": 1.0}})");
  EXPECT_EQ(sharded.plan.sharding.level, 3);
  EXPECT_EQ(sharded.plan.sharding.degree, 16);
  EXPECT_EQ(sharded.max_grad_norm, 1.0);
  EXPECT_THAT(sharded.notices, IsEmpty());
  const SmpParameters second = parse(R"({"hybrid_shard_degree": 2, "sm_activation_offloading": true,
      "activation_loading_horizon": 2, "fsdp_cache_flush_warnings": false,
      "allow_empty_shards": true, "tensor_parallel_degree": 2, "context_parallel_degree": 1,
      "expert_parallel_degree": 1, "random_seed": 12345})",
                                     {.gradient_checkpointing = true});
  EXPECT_EQ(second.plan.sharding.level, 3);
  EXPECT_EQ(second.plan.sharding.degree, 2);
  EXPECT_EQ(second.plan.mesh.tensor, 2);
  EXPECT_TRUE(second.plan.activations.offload);
  EXPECT_EQ(second.plan.activations.loading_horizon, 2);
  EXPECT_EQ(second.seed, 12345);
  EXPECT_THAT(second.notices,
              ElementsAre(HasSubstr("counts pipeline tasks"), HasSubstr("fsdp_cache_flush")));
  // Hyperparameters of a SageMaker job are strings.
  EXPECT_EQ(parse(R"({"partitions": "2", "ddp": "True", "sdp_gradient_clipping": "1e0"})")
                .plan.mesh.pipeline,
            2);
}

TEST(SmpParameters, NamesErrors) {
  expect_refused({
      {R"({"partitons": 2})", "did you mean partitions?"},
      {R"({"partitions": 2, "pipeline_parallel_degree": 4})", "they are one option"},
      {R"({"partitions": 0})", "an integer from 1"},
      {R"({"microbatches": 1.5})", "microbatches is 1.5"},
      {R"({"memory_weight": 1.5, "partitions": 2})", "memory_weight is 1.5"},
      {R"({"ddp": "maybe"})", "true or false"},
      {R"({"partitions": 2, "pipeline": "interleavd"})", "did you mean interleaved?"},
      {R"({"optimize": "size"})", "one of memory, speed"},
      {R"({"placement_strategy": "DPX"})", "another order of the letters D, P and T"},
      {R"({"enabled": true, "parameters": {}, "more": 1})", "more beside parameters"},
      {R"({"enabled": false, "partitions": 4})", "partitions beside parameters"},
      {R"({"enabled": "perhaps", "parameters": {}})", "true or false"},
      {R"([1])", "not a JSON object"},
  });
  EXPECT_EQ(parse(R"({"partitions": 4, "pipeline_parallel_degree": 4})").plan.mesh.pipeline, 4);
  EXPECT_THAT(parse(R"({"enabled": false, "parameters": {"partitions": 4}})").notices,
              ElementsAre(HasSubstr("not enabled")));
  for (const char* off : {R"({"enabled": false})", R"({"enabled": "False"})", R"({"enabled": 0})",
                          R"({"enabled": "no", "parameters": {"partitions": 4}})"}) {
    const SmpParameters none = parse(off);
    EXPECT_EQ(none.plan.mesh.pipeline, 1) << off;
    EXPECT_THAT(none.notices, ElementsAre(HasSubstr("not enabled"))) << off;
    EXPECT_EQ(given_smp_keys(json::parse(off)), std::nullopt) << off;
  }
  EXPECT_THAT(parse(R"({"enabled": true})").notices, IsEmpty());
  for (const char* order : {"PDT", "PTD", "DPT", "DTP", "TPD", "TDP"})
    EXPECT_EQ(parse_smp_parameters({{"placement_strategy", order}}).plan.mesh.placement.letters(),
              order);
  // All of them are listed, one a line.
  const std::string all = said(R"({"tensor_parallel_degree": 2, "pipeline": "simple", "bf16": true,
                                   "fp16": true, "contiguous": false})");
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 3) << all;
}

TEST(SmpParameters, Pipelines) {
  EXPECT_EQ(parse(R"({"partitions": 4, "pipeline": "simple"})").plan.pipeline.schedule,
            ScheduleKind::simple);
  EXPECT_EQ(parse(R"({"partitions": 4, "pipeline": "1f1b"})").plan.pipeline.schedule,
            ScheduleKind::one_f_one_b);
  EXPECT_EQ(parse(R"({"partitions": 4, "pipeline": "zero_bubble"})").plan.pipeline.schedule,
            ScheduleKind::zero_bubble);
  EXPECT_EQ(parse(R"({"partitions": 4, "pipeline": "zero_bubble_v"})").plan.pipeline.chunks, 2);
  const SmpParameters p = parse(R"({"partitions": 2, "pipeline": "virtual_interleaved",
                                    "virtual_pipeline_parallel_degree": 3, "microbatches": 8})");
  EXPECT_EQ(p.plan.pipeline.schedule, ScheduleKind::virtual_interleaved);
  EXPECT_EQ(p.plan.pipeline.chunks, 3);
  EXPECT_EQ(p.plan.pipeline.active_microbatches, 0);
  EXPECT_EQ(parse(R"({"partitions": 4, "microbatches": 8})").plan.pipeline.active_microbatches, 6);
  EXPECT_EQ(parse(R"({"partitions": 4, "microbatches": 8, "active_microbatches": 2})")
                .plan.pipeline.active_microbatches,
            2);
  expect_refused({
      {R"({"pipeline": "simple", "memory_weight": 0.5})",
       "pipeline, memory_weight speak of a pipeline, but partitions"},
      {R"({"partitions": 2, "pipeline": "virtual_interleaved"})", "2 or more"},
      {R"({"partitions": 2, "pipeline": "1f1b", "virtual_pipeline_parallel_degree": 2})",
       "1f1b has one stage a rank"},
      {R"({"partitions": 2, "pipeline": "zero_bubble_v", "virtual_pipeline_parallel_degree": 3})",
       "2 stages a rank"},
      {R"({"partitions": 2, "microbatches": 4, "active_microbatches": 5})",
       "active_microbatches is 5, but there are 4"},
      {R"({"partitions": 2, "microbatches": 4, "active_microbatches": 2, "pipeline": "simple"})",
       "simple decides itself"},
      {R"({"partitions": 2, "pipeline": "_only_forward"})", "set do_train to false"},
  });
  const SmpParameters forward =
      parse(R"({"partitions": 2, "pipeline": "simple_only_forward"})", {.training = false});
  EXPECT_EQ(forward.plan.pipeline.schedule, ScheduleKind::simple);
  EXPECT_EQ(parse(R"({"partitions": 2, "pipeline": "_only_forward"})", {.training = false})
                .plan.pipeline.schedule,
            ScheduleKind::interleaved);
}

TEST(SmpParameters, APlanIsOfWhatTheScheduleAndCheckpointsKeep) {
  std::vector<UnitCost> units = units_of(9);
  for (UnitCost& unit : units) unit.activation_bytes = 100;
  const auto first = [&](const std::string& more) {
    const std::string text =
        R"({"partitions": 2, "microbatches": 8, "manual_partition": [5, 4], )" + more + "}";
    return choose_partition(parse(text.c_str()).plan, units, 0).costs[0];
  };
  const StageCost one = first(R"("active_microbatches": 1)"),
                  two = first(R"("active_microbatches": 2)"),
                  all = first(R"("pipeline": "simple")"),
                  pairs = first(R"("pipeline": "simple", "activation_checkpointing": "group_2")");
  EXPECT_EQ(one.microbatches, 1);
  EXPECT_EQ(two.microbatches, 2);
  EXPECT_EQ(all.microbatches, 8);
  EXPECT_EQ(all.memory_bytes, 8 * 500);
  EXPECT_EQ(pairs.memory_bytes, 8 * 300) << "embeddings, and one input of each two blocks";
}

TEST(SmpParameters, CutsAutomaticallyOrByHand) {
  const std::vector<UnitCost> units = units_of(9);
  EXPECT_THAT(counts_of(choose_partition(parse(R"({"partitions": 3})").plan, units)),
              ElementsAre(3, 3, 3));
  for (const char* text : {R"({"partitions": 3, "manual_partition": [4, 3, 2]})",
                           R"({"partitions": 3, "manual_partition": "4,3,2"})",
                           R"({"partitions": 3, "auto_partition": false,
                               "manual_partition": ["embeddings", "h.3", "h.6"]})",
                           R"({"partitions": 3, "auto_partition": false, "default_partition": 2,
                               "partition_assignment": {"embeddings": 0, "h.0": 0, "h.1": 0,
                               "h.2": 0, "h.3": 1, "h.4": 1, "h.5": 1}})"})
    EXPECT_THAT(counts_of(choose_partition(parse(text).plan, units)), ElementsAre(4, 3, 2)) << text;
  expect_refused({
      {R"({"partitions": 2, "auto_partition": false})", "nothing says which units"},
      {R"({"partitions": 2, "auto_partition": false, "default_partition": 0})",
       "nothing says which units"},
      {R"({"partitions": 2, "auto_partition": false, "partition_assignment": {"h.0": 0}})",
       "default_partition is not given"},
      {R"({"partitions": 2, "default_partition": 2})", "partitions are 0 to 1"},
      {R"({"partitions": 2, "auto_partition": true, "manual_partition": [4, 5]})",
       "auto_partition is true"},
      {R"({"partitions": 3, "manual_partition": [4, 5]})",
       "is of 2 stages ([4, 5]), but there are 3"},
      {R"({"partitions": 65536, "virtual_pipeline_parallel_degree": 65536,
           "pipeline": "virtual_interleaved", "manual_partition": [4, 5]})",
       "but there are 4294967296"},
      {R"({"partitions": 2, "manual_partition": [4, "h.4"]})", "give one kind"},
      {R"({"partitions": 2, "partition_assignment": {"h.0": 2}, "auto_partition": false,
           "default_partition": 0})",
       "puts h.0 on 2"},
      {R"({"partitions": 2, "manual_partition": [4, 5], "partition_assignment": {"h.0": 1}})",
       "give one"},
      {R"({"partitions": 2, "load_partition": true})", "partition_file names no file"},
  });
  const auto cut = [&](const char* text) {
    return test::error_text([&] { choose_partition(parse(text).plan, units); });
  };
  EXPECT_THAT(cut(R"({"partitions": 2, "manual_partition": ["embeddings", "h.44"]})"),
              HasSubstr("no unit 'h.44'"));
  EXPECT_THAT(cut(R"({"partitions": 2, "manual_partition": ["h.0", "h.4"]})"),
              HasSubstr("begins with the model, at 'embeddings'"));
  EXPECT_THAT(cut(R"({"partitions": 3, "manual_partition": ["embeddings", "h.4", "h.2"]})"),
              HasSubstr("'h.2' does not come after 'h.4'"));
  EXPECT_THAT(cut(R"({"partitions": 2, "manual_partition": [4, 4]})"), HasSubstr("8 units"));
  EXPECT_THAT(parse(R"({"partitions": 2, "default_partition": 1})").notices,
              ElementsAre(HasSubstr("default_partition has no effect")));
  EXPECT_FALSE(
      parse(R"({"partitions": 2, "skip_tracing": true})").plan.pipeline.partition.measured);
}

// A stage that keeps more microbatches gets fewer units.
TEST(SmpParameters, ThePartitionUsesTheSchedulesMicrobatches) {
  std::vector<UnitCost> units = units_of(12);
  for (UnitCost& unit : units) unit.activation_bytes = 1000;
  const auto counts = [&](const char* text) {
    return counts_of(choose_partition(parse(text).plan, units));
  };
  EXPECT_THAT(counts(R"({"partitions": 2, "microbatches": 4, "pipeline": "simple",
                         "memory_weight": 1})"),
              ElementsAre(6, 6));
  EXPECT_THAT(counts(R"({"partitions": 2, "microbatches": 4, "pipeline": "1f1b",
                         "memory_weight": 1})"),
              ElementsAre(4, 8));
}

TEST(SmpParameters, APartitionGoesThroughItsFile) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "partition.json";
  const std::vector<UnitCost> units = units_of(9);
  SmpParameters p = parse(R"({"partitions": 3, "manual_partition": [5, 3, 1]})");
  write_partition(path, choose_partition(p.plan, units), units);
  const json saved = {{"partitions", 3}, {"load_partition", true}, {"partition_file", path}};
  p = parse_smp_parameters(saved);
  EXPECT_THAT(counts_of(choose_partition(p.plan, units)), ElementsAre(5, 3, 1));
  EXPECT_THAT(test::error_text([&] { choose_partition(p.plan, units_of(10)); }),
              HasSubstr("of a model of 9 units, this one has 10"));
  EXPECT_THAT(
      test::error_text([&] {
        SmpParameters other = p;
        other.plan.pipeline.partition.file = directory / "none.json";
        choose_partition(other.plan, units);
      }),
      AllOf(HasSubstr("none.json"), HasSubstr("a run with load_partition false writes it")));
  std::ofstream(path) << "{\"units\": 3}";
  EXPECT_THAT(test::error_text([&] { choose_partition(p.plan, units); }),
              HasSubstr("has units: 3, where a list is expected"));
}

TEST(SmpParameters, TensorParallelism) {
  EXPECT_THAT(said(R"({"tensor_parallel_degree": 2})"), HasSubstr("set ddp to true"));
  EXPECT_THAT(said(R"({"tensor_parallel_degree": 2, "ddp": false})"), HasSubstr("ddp is false"));
  const SmpParameters p =
      parse(R"({"tensor_parallel_degree": 2, "ddp": true, "prescaled_batch": true})");
  EXPECT_EQ(p.plan.mesh.tensor, 2);
  EXPECT_TRUE(p.plan.tensor.prescaled_batch);
  EXPECT_EQ(parse(R"({"tensor_parallel_degree": 2, "hybrid_shard_degree": 1})").plan.mesh.tensor,
            2);
}

TEST(SmpParameters, Sharding) {
  const auto level = [](const char* text) {
    const SmpParameters p = parse(text);
    return std::pair(p.plan.sharding.level, p.plan.sharding.degree);
  };
  using Level = std::pair<int, int>;
  EXPECT_EQ(level(R"({"shard_optimizer_state": true})"), Level(1, 0));
  EXPECT_EQ(level(R"({"sharded_data_parallel_degree": 1})"), Level(0, 0));
  EXPECT_EQ(level(R"({"sharded_data_parallel_degree": 4})"), Level(3, 4));
  EXPECT_EQ(level(R"({"hybrid_shard_degree": 0})"), Level(3, 0));
  EXPECT_EQ(level(R"({"hybrid_shard_degree": 1})"), Level(0, 0));
  EXPECT_EQ(level(R"({"sharding_strategy": "SHARD_GRAD_OP"})"), Level(2, 0));
  EXPECT_EQ(level(R"({"sharding_strategy": "FULL_SHARD"})"), Level(3, 0));
  EXPECT_EQ(level(R"({"sharding_strategy": "HYBRID_SHARD", "hybrid_shard_degree": 2})"),
            Level(3, 2));
  EXPECT_EQ(
      level(R"({"sharding_strategy": "_HYBRID_SHARD_ZERO2", "sharded_data_parallel_degree": 2})"),
      Level(2, 2));
  EXPECT_EQ(level(R"({"sharding_strategy": "no_shard", "shard_optimizer_state": true})"),
            Level(1, 0));
  expect_refused({
      {R"({"sharded_data_parallel_degree": 2, "shard_optimizer_state": true})", "leave one out"},
      {R"({"sharded_data_parallel_degree": 2, "hybrid_shard_degree": 4})",
       "sharded_data_parallel_degree is 2 and hybrid_shard_degree is 4"},
      {R"({"sharding_strategy": "NO_SHARD", "sharded_data_parallel_degree": 2})", "NO_SHARD, but"},
      {R"({"sharding_strategy": "HYBRID_SHARD"})", "not given"},
      {R"({"sharding_strategy": "FULL_SHARD", "sharded_data_parallel_degree": 1})",
       "leave the degree out"},
      {R"({"sharding_strategy": "FULL_SHRAD"})", "did you mean FULL_SHARD?"},
  });
  const SmpParameters sizes = parse(R"({"sharded_data_parallel_degree": 2,
      "sdp_reduce_bucket_size": 1000, "sdp_param_persistence_threshold": 0,
      "sdp_max_live_parameters": 2000, "sdp_hierarchical_allgather": false})");
  EXPECT_EQ(sizes.plan.sharding.bucket_elements, 1000);
  EXPECT_EQ(sizes.plan.sharding.persistence_threshold, 0);
  EXPECT_EQ(sizes.plan.sharding.max_live_parameters, 2000);
  EXPECT_EQ(sizes.collectives, "all_gather:^hierarchical");
  EXPECT_THAT(sizes.notices, IsEmpty());
  EXPECT_THAT(parse(R"({"shard_optimizer_state": true, "sdp_reduce_bucket_size": 1000,
                        "sdp_max_live_parameters": 2000, "sdp_gradient_clipping": 2.0})")
                  .notices,
              ElementsAre(HasSubstr("sdp_max_live_parameters has no effect"),
                          HasSubstr("sdp_gradient_clipping has no effect")));
}

// Decision 18: settings that exist both in SMP and as options of the run.
TEST(SmpParameters, OneOptionOneMeaning) {
  EXPECT_EQ(parse(R"({"fp16": true})").fp16, true);
  EXPECT_EQ(parse(R"({"bf16": true})", {.bf16 = true}).bf16, true);
  EXPECT_EQ(parse("{}", {.bf16 = true}).bf16, true);
  EXPECT_THAT(said(R"({"bf16": true})", {.bf16 = false}),
              AllOf(HasSubstr("bf16 is true in mp_parameters"), HasSubstr("bf16 is false in")));
  EXPECT_THAT(said(R"({"bf16": true})", {.fp16 = true}), HasSubstr("both set"));
  EXPECT_THAT(said(R"({"bf16": true, "fp16": true})"), HasSubstr("both set"));
  EXPECT_THAT(said(R"({"fp16_params": true})"), HasSubstr("set fp16"));
  EXPECT_EQ(parse(R"({"fp16_params": true, "fp16": true})").fp16, true);

  const char* clipped = R"({"sharded_data_parallel_degree": 2, "sdp_gradient_clipping": 0.5})";
  EXPECT_EQ(parse(clipped).max_grad_norm, 0.5);
  EXPECT_EQ(parse(clipped, {.max_grad_norm = 0.5}).max_grad_norm, 0.5);
  EXPECT_THAT(said(clipped, {.max_grad_norm = 1.0}),
              AllOf(HasSubstr("sdp_gradient_clipping is 0.5"), HasSubstr("max_grad_norm is 1")));
  const char* sharded = R"({"sharded_data_parallel_degree": 2})";
  EXPECT_EQ(parse(sharded).max_grad_norm, 1.0);
  EXPECT_EQ(parse(sharded, {.max_grad_norm = 0.0}).max_grad_norm, 0.0);
  EXPECT_EQ(parse("{}", {.max_grad_norm = 2.0}).max_grad_norm, 2.0);

  EXPECT_EQ(parse("{}", {.seed = 7}).seed, 7);
  EXPECT_EQ(parse(R"({"tensor_parallel_seed": 7})").seed, 7);
  EXPECT_THAT(said(R"({"random_seed": 7})", {.seed = 8}), HasSubstr("seed is 8"));
  EXPECT_EQ(parse(R"({"ddp": true, "ddp_dist_backend": "nccl"})").backend, "nccl");
  EXPECT_EQ(parse(R"({"ddp": true, "ddp_dist_backend": "auto"})", {.backend = "mpi"}).backend,
            "mpi");
  EXPECT_THAT(said(R"({"ddp": true, "ddp_dist_backend": "nccl"})", {.backend = "mpi"}),
              HasSubstr("ddp_backend is mpi"));
}

TEST(SmpParameters, Activations) {
  const auto group = [](const char* text, const RunValues& run = {}) {
    return parse(text, run).plan.activations.checkpoint_group;
  };
  EXPECT_EQ(group(R"({"activation_checkpointing": "each"})"), 1);
  EXPECT_EQ(group(R"({"activation_checkpointing": "group_3"})"), 3);
  EXPECT_GE(group(R"({"activation_checkpointing": "contiguous"})"), 1000);
  EXPECT_EQ(group(R"({"activation_checkpointing": "none"})"), 0);
  EXPECT_EQ(group("{}", {.gradient_checkpointing = true}), 1);
  EXPECT_EQ(group(R"({"activation_checkpointing": "group_2"})", {.gradient_checkpointing = true}),
            2);
  expect_refused({
      {R"({"activation_checkpointing": "group_0"})", "group_N"},
      {R"({"activation_checkpointing": "group_2x"})", "group_N"},
      {R"({"activation_checkpointing": "every"})", "group_N"},
      {R"({"offload_activations": true})", "set activation_checkpointing"},
      {R"({"sm_activation_offloading": true})", "set activation_checkpointing"},
      {R"({"offload_activations": true, "sm_activation_offloading": false})", "must be equal"},
      {R"({"activation_loading_horizon": 0})", "an integer from 1"},
  });
  EXPECT_THAT(said(R"({"activation_checkpointing": "each"})", {.gradient_checkpointing = false}),
              HasSubstr("must agree"));
  const RunValues offloads{.gradient_checkpointing = true, .activation_offloading = true};
  EXPECT_TRUE(parse("{}", offloads).plan.activations.offload);
  EXPECT_TRUE(parse(R"({"offload_activations": true})", offloads).plan.activations.offload);
  EXPECT_THAT(said(R"({"sm_activation_offloading": false})", offloads),
              HasSubstr("sm_activation_offloading is false in mp_parameters and "
                        "activation_offloading is true"));
  EXPECT_THAT(said("{}", {.activation_offloading = true}),
              HasSubstr("activation_offloading is true, but activations are not checkpointed"));
  const SmpParameters p = parse(R"({"offload_activations": true, "activation_loading_horizon": 6,
                                    "activation_checkpointing": "each"})");
  EXPECT_TRUE(p.plan.activations.offload);
  EXPECT_EQ(p.plan.activations.loading_horizon, 6);
  EXPECT_EQ(parse(R"({"sm_activation_offloading": true, "activation_checkpointing": "each"})")
                .plan.activations.loading_horizon,
            2);
  EXPECT_THAT(parse(R"({"activation_loading_horizon": 6})").notices,
              ElementsAre(HasSubstr("are not offloaded")));
}

TEST(SmpParameters, LossScaling) {
  const auto scaling = *parse(R"({"fp16": true, "dynamic_loss_args": {"init_scale": 1024,
      "scale_factor": 4, "scale_window": 10, "min_scale": 0.5, "delayed_shift": 2}})")
                            .plan.precision.loss_scaling;
  EXPECT_TRUE(scaling.dynamic);
  EXPECT_EQ(scaling.init_scale, 1024);
  EXPECT_EQ(scaling.factor, 4);
  EXPECT_EQ(scaling.window, 10);
  EXPECT_EQ(scaling.min_scale, 0.5);
  EXPECT_EQ(scaling.delayed_shift, 2);
  const auto fixed =
      *parse(R"({"fp16": true, "static_loss_scale": 128})").plan.precision.loss_scaling;
  EXPECT_FALSE(fixed.dynamic);
  EXPECT_EQ(fixed.init_scale, 128);
  expect_refused({
      {R"({"fp16": true, "static_loss_scale": 8, "dynamic_loss_scale": true})", "give one"},
      {R"({"fp16": true, "dynamic_loss_args": {"scale_windw": 8}})", "did you mean scale_window?"},
      {R"({"fp16": true, "static_loss_scale": 8, "dynamic_loss_args": {"init_scale": 8}})",
       "loss scale is static"},
  });
  EXPECT_THAT(parse(R"({"bf16": true, "static_loss_scale": 8})").notices,
              ElementsAre(HasSubstr("only fp16 needs it")));
}

// Gradients are always summed, so a configuration that forbids it is refused.
TEST(SmpParameters, ReplicasWantDdp) {
  const auto problem = [&](const char* text) {
    const auto found = find_problems(parse(text).plan, {.ranks = 8, .batch = 8, .length = 128},
                                     {.units = 10, .heads = 8, .inner = 8});
    return found.empty() ? std::string() : found[0].what + "; " + found[0].remedy;
  };
  const auto notes = [&](const char* text) { return find_idle_options(parse(text).plan, 8); };
  EXPECT_THAT(problem(R"({"partitions": 2, "ddp": false})"),
              AllOf(HasSubstr("8 ranks make 4 replicas"), HasSubstr("start 2 ranks")));
  EXPECT_EQ(problem(R"({"partitions": 8, "ddp": false})"), "");
  EXPECT_EQ(problem(R"({"partitions": 2})"), "");
  EXPECT_THAT(notes(R"({"partitions": 2})"),
              ElementsAre(HasSubstr("gradients of the 4 replicas (8 ranks)")));
  for (const char* quiet : {R"({"partitions": 2, "ddp": true})", R"({"partitions": 8})",
                            R"({"hybrid_shard_degree": 2})"})
    EXPECT_THAT(notes(quiet), IsEmpty()) << quiet;
  const char* horovod = R"({"partitions": 2, "horovod": true})";
  EXPECT_THAT(notes(horovod), IsEmpty());
  EXPECT_THAT(parse(horovod).notices, ElementsAre(HasSubstr("horovod has no effect")));
  EXPECT_THAT(said(R"({"ddp": true, "horovod": true})"), HasSubstr("choose ddp"));
  EXPECT_THAT(said(R"({"ddp_dist_backend": "nccl"})"), HasSubstr("ddp is not true"));
}

// These are for users of the library. `shoal train` creates its communicator from the same options.
TEST(SmpParameters, SayHowTheCommunicatorIsMade) {
  const SmpParameters p = parse(R"({"ddp": true, "ddp_dist_backend": "nccl",
      "sharded_data_parallel_degree": 2, "sdp_hierarchical_allgather": false})");
  collectives::CommunicatorOptions run;
  run.collectives = "all_reduce:@ring";
  run.fixed_order = true;
  const auto how = communicator_options(p, run);
  EXPECT_EQ(how.backend, "nccl");
  EXPECT_EQ(how.collectives, "all_reduce:@ring#all_gather:^hierarchical");
  EXPECT_TRUE(how.fixed_order);
  EXPECT_EQ(communicator_options(p, how).collectives, how.collectives);
  run.backend = "mpi";
  EXPECT_EQ(communicator_options(parse("{}"), run).backend, "mpi");
  run.collectives = "@rules";
  EXPECT_THAT(test::error_text([&] { communicator_options(p, run); }),
              HasSubstr("put the rule into the file"));
}

TEST(SmpParameters, ReportsKeysWithoutEffect) {
  const Rows rows = {
      {R"({"ddp_port": 1234})", "launcher's variables"},
      {R"({"deterministic_server": false})", "agreed before the step"},
      {R"({"delayed_parameter_initialization": false})", "no rank ever holds"},
      {R"({"fsdp_cache_flush_warnings": true})", "no allocator cache"},
      {R"({"allow_empty_shards": false})", "may hold nothing"},
      {R"({"translate_if_full": false})", "Hugging Face's names"},
      {R"({"fast_mode": false})", "from stage to stage"},
      {R"({"static_mode": false})", "posted ahead"},
      {R"({"task_level_activation_loading_horizon": 4})", "counted in tasks"},
  };
  for (const auto& [text, part] : rows)
    EXPECT_THAT(parse(text).notices,
                ElementsAre(AllOf(HasSubstr("has no effect"), HasSubstr(part))))
        << text;
  EXPECT_THAT(parse(R"({"deterministic_server": true, "delayed_parameter_initialization": "True",
                        "contiguous": true, "herring": false, "checkpoint_attentions": false,
                        "context_parallel_degree": 1, "ddp_port": null, "_comment": "mine"})")
                  .notices,
              IsEmpty());
}

TEST(SmpParameters, RefusesUnsupportedFeatures) {
  expect_refused({
      {R"({"contiguous": false})", "contiguous is false, which there is not here: stages are"},
      {R"({"checkpoint_attentions": true})", "use activation_checkpointing"},
      {R"({"herring": true})", "herring is true"},
      {R"({"context_parallel_degree": 2})", "context_parallel_degree is 2"},
      {R"({"expert_parallel_degree": 2})", "no models of experts"},
      {R"({"_match_weights": true})", "_match_weights is true"},
      {R"({"_fp32_grad_accumulation": true})", "added up in f32"},
      {R"({"_shard_offloaded_activations": false})", "offloads its own"},
      {R"({"_sharded_data_parallelism_config": "ds.json"})", "use the sdp_ keys"},
  });
}

TEST(SmpParameters, ReachWhatTheyAreFor) {
  const SmpParameters p = parse(R"({"partitions": 2, "tensor_parallel_degree": 2, "ddp": true,
      "microbatches": 4, "active_microbatches": 3, "optimize": "speed", "prescaled_batch": true,
      "sharded_data_parallel_degree": 2, "bf16": true, "activation_checkpointing": "group_2",
      "offload_activations": true, "activation_loading_horizon": 5})");
  const ParallelPlan want{
      .mesh = {.pipeline = 2, .tensor = 2},
      .pipeline = {.microbatches = 4,
                   .active_microbatches = 3,
                   .partition = {.memory_weight = 0.2}},
      .tensor = {.prescaled_batch = true, .speed = true},
      .sharding = {.level = 3, .degree = 2},
      .activations = {.checkpoint_group = 2, .offload = true, .loading_horizon = 5},
      .precision = {.dtype = DType::bf16}};
  EXPECT_EQ(p.plan, want) << plan_json(p.plan);
  EXPECT_THAT(find_problems(p.plan, {.ranks = 16, .batch = 8, .length = 128},
                            {.units = 14, .heads = 12, .inner = 3072}),
              IsEmpty());
  const SmpParameters by_hand = parse(R"({"partitions": 2, "manual_partition": [7, 1]})");
  EXPECT_THAT(counts_of(choose_partition(by_hand.plan, units_of(8), 16)), ElementsAre(7, 1));
  const SmpParameters chunked =
      parse(R"({"partitions": 2, "pipeline": "zero_bubble_v", "fp16": true})");
  EXPECT_EQ(chunked.plan.pipeline.schedule, ScheduleKind::zero_bubble_v);
  EXPECT_EQ(chunked.plan.pipeline.chunks, 2);
  EXPECT_EQ(chunked.plan.precision.dtype, DType::f16);
}

TEST(SmpParameters, PyTorchModelsHaveTheirOwnRefusals) {
  const RunValues pytorch{.training = false, .pytorch = true};
  expect_refused(
      {{R"({"partitions": 2, "pipeline": "zero_bubble"})",
        "pipeline is zero_bubble, which PyTorch models do not have: a module has one"},
       {R"({"partitions": 2, "virtual_pipeline_model_parallel_size": 3})",
        "virtual_pipeline_parallel_degree is 3, which there is not here: a rank has one stage"},
       {R"({"partitions": 2, "manual_partition": [1, 2]})", "with smp.partition()"},
       {R"({"partitions": 2, "auto_partition": false})",
        "default_partition is not given: the partition of modules that smp.partition()"},
       {R"({"partitions": 2, "sharded_data_parallel_degree": 2})",
        "sharded_data_parallel_degree shards parameters, and pipeline_parallel_degree is 2"},
       {R"({"partitions": 2, "sharding_strategy": "SHARD_GRAD_OP"})",
        "sharding_strategy shards parameters, and pipeline_parallel_degree is 2"},
       {R"({"herring": true})", "herring is true, which there is not here"}},
      pytorch);
  const SmpParameters in_code = parse(
      R"({"partitions": 2, "auto_partition": false, "default_partition": 1,
          "offload_activations": true, "load_partition": false, "sdp_reduce_bucket_size": 5})",
      pytorch);
  EXPECT_TRUE(in_code.plan.activations.offload);
  EXPECT_EQ(in_code.plan.pipeline.partition.default_partition, 1);
  EXPECT_THAT(in_code.notices,
              Contains(HasSubstr("sdp_reduce_bucket_size (5) has no effect: gradients")));
  // The same keys, for Shoal's own models.
  EXPECT_THAT(said(R"({"offload_activations": true})"), HasSubstr("set activation_checkpointing"));
}

TEST(SmpParameters, TheDocumentHasTheParsersTable) {
  std::ifstream file(testing::source_path("docs/reference/smp_parameters.md"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string table = smp_parameters_table();
  EXPECT_NE(text.find(table), std::string::npos)
      << "docs/reference/smp_parameters.md differs from the table, which is now:\n"
      << table;
}

}  // namespace
}  // namespace shoal::parallel
