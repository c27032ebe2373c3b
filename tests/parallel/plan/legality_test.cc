// Plans that find_problems() refuses, and the error texts.
#include "shoal/parallel/plan/legality.h"

#include <fstream>
#include <iterator>

#include "support/error_text.h"
#include "support/source_tree.h"
#include <gmock/gmock.h>

#include "shoal/nn/models/causal_lm.h"

namespace shoal::parallel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const LayoutModel kGpt2{.units = 14, .heads = 12, .inner = 3072};

// A plan and its run, in the terms of the document's table.
struct Asked {
  int ranks = 1, pipeline = 1, tensor = 1;
  ScheduleKind schedule = ScheduleKind::interleaved;
  int chunks = 1, microbatches = 1;
  std::int64_t batch = 1;
  int accumulated = 1;
  std::int64_t length = 0;
  bool prescaled_batch = false, speed = false;
  int sharding = 0, sharded_degree = 0;
  bool checkpointing = false, offloading = false;

  ParallelPlan plan() const {
    return {.mesh = {.pipeline = pipeline, .tensor = tensor},
            .pipeline = {.schedule = schedule, .microbatches = microbatches, .chunks = chunks},
            .tensor = {.prescaled_batch = prescaled_batch, .speed = speed},
            .sharding = {.level = sharding, .degree = sharded_degree},
            .activations = {.checkpoint_group = checkpointing ? 1 : 0, .offload = offloading}};
  }
  RunShape run() const { return {ranks, batch, accumulated, length}; }
};

std::vector<LayoutProblem> problems_of(const Asked& asked) {
  return find_problems(asked.plan(), asked.run(), kGpt2);
}
std::vector<std::string> idle_of(const Asked& asked) {
  return find_idle_options(asked.plan(), asked.ranks);
}
std::string said(const Asked& asked) {
  return test::error_text([&] { check_layout(asked.plan(), asked.run(), kGpt2); });
}

TEST(Legality, RefusesWithNumbersAndRemedy) {
  EXPECT_THAT(said({.ranks = 2, .pipeline = 4}),
              AllOf(HasSubstr("2 ranks do not divide by pipeline_parallel_degree 4"),
                    HasSubstr("at least 4 ranks; partitions are not replicas")));
  EXPECT_THAT(said({.ranks = 1, .pipeline = 2}), HasSubstr("1 rank does not divide by"));
  EXPECT_THAT(said({.ranks = 6, .pipeline = 2, .tensor = 2}), HasSubstr("start 4 or 8 ranks"));
  EXPECT_THAT(
      said({.ranks = 8, .tensor = 8}),
      AllOf(HasSubstr("12 attention heads"), HasSubstr("degrees that do: 1, 2, 3, 4, 6, 12")));
  EXPECT_THAT(said({.ranks = 4, .tensor = 4, .length = 510, .prescaled_batch = true}),
              AllOf(HasSubstr("510 positions"), HasSubstr("508 or 512"), HasSubstr("speed")));
  EXPECT_THAT(said({.ranks = 2, .pipeline = 2, .microbatches = 3, .batch = 8}),
              AllOf(HasSubstr("a batch of 8"), HasSubstr("1, 2, 4, 8")));
  EXPECT_THAT(said({.ranks = 16, .pipeline = 16}), HasSubstr("16 stages"));
  EXPECT_THAT(said({.ranks = 8,
                    .pipeline = 8,
                    .schedule = ScheduleKind::virtual_interleaved,
                    .chunks = 2,
                    .microbatches = 8,
                    .batch = 8}),
              HasSubstr("at most 14 stages"));
  EXPECT_THAT(said({.ranks = 4, .pipeline = 2, .schedule = ScheduleKind::zero_bubble_v}),
              HasSubstr("zero_bubble_v"));
  EXPECT_THAT(said({.ranks = 4, .sharding = 4}), HasSubstr("sharding level 4"));
  EXPECT_THAT(said({.ranks = 6, .sharding = 1, .sharded_degree = 4}),
              AllOf(HasSubstr("does not divide the 6 replicas"), HasSubstr("1, 2, 3, 6")));
  EXPECT_THAT(said({.offloading = true}), HasSubstr("set activation_checkpointing too"));
  EXPECT_THAT(said({.ranks = 4, .pipeline = 0}), HasSubstr("degrees are 1 or more"));
  // No int holds these products; 65536 x 65536 would be 0.
  EXPECT_THAT(said({.ranks = 2, .pipeline = 65536, .tensor = 65536, .sharding = 1}),
              HasSubstr("start at least 4294967296 ranks"));
  EXPECT_THAT(said({.ranks = 65536,
                    .pipeline = 65536,
                    .schedule = ScheduleKind::virtual_interleaved,
                    .chunks = 65536}),
              HasSubstr("4294967296 stages"));
  EXPECT_THAT(said({.microbatches = 1 << 16, .batch = 1 << 16, .accumulated = 1 << 16}),
              HasSubstr("are 4294967296 of one step; use at most 1000000"));
}

// The document's table: one request for each reason to refuse, with its text.
std::string legality_table() {
  struct Row {
    const char* asked;
    Asked request;
  };
  using enum ScheduleKind;
  const Row rows[] = {
      {"any mesh", {.ranks = 6, .pipeline = 2, .tensor = 2}},
      {"any mesh", {.ranks = 2, .pipeline = 4}},
      {"any mesh", {.ranks = 4, .pipeline = 0}},
      {"tensor parallelism", {.ranks = 8, .tensor = 8}},
      {"`prescaled_batch`, `optimize = memory`",
       {.ranks = 4, .tensor = 4, .length = 510, .prescaled_batch = true}},
      {"microbatches", {.ranks = 2, .pipeline = 2, .microbatches = 3, .batch = 8}},
      {"microbatches", {.microbatches = 8, .batch = 8, .accumulated = 200000}},
      {"pipelines", {.ranks = 16, .pipeline = 16}},
      {"`zero_bubble_v`", {.ranks = 2, .pipeline = 2, .schedule = zero_bubble_v}},
      {"`simple`, `interleaved`, `1f1b`, `zero_bubble`",
       {.ranks = 2, .pipeline = 2, .schedule = one_f_one_b, .chunks = 2}},
      {"sharding", {.ranks = 4, .sharding = 4}},
      {"sharding", {.ranks = 6, .sharding = 1, .sharded_degree = 4}},
      {"offloading", {.offloading = true}},
  };
  std::string table = "| asked for | refused, for example | remedy |\n|---|---|---|\n";
  for (const Row& row : rows) {
    const auto problems = problems_of(row.request);
    EXPECT_EQ(problems.size(), 1U) << row.asked;
    for (const LayoutProblem& problem : problems)
      table += fmt::format("| {} | {} | {} |\n", row.asked, problem.what, problem.remedy);
  }
  return table;
}

TEST(Legality, TheDocumentHasTheTexts) {
  std::ifstream file(testing::source_path("docs/guides/parallelism.md"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string table = legality_table();
  EXPECT_NE(text.find(table), std::string::npos)
      << "docs/guides/parallelism.md differs from the table, which is now:\n"
      << table;
}

TEST(Legality, ReadsSizesFromAModelsModules) {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.hidden_size = 24;
  config.num_attention_heads = 6;
  config.num_hidden_layers = 3;
  const LayoutModel model = layout_model(nn::CausalLm(config));
  EXPECT_EQ(model.units, 5);
  EXPECT_EQ(model.heads, 6);
  EXPECT_EQ(model.inner, 96);
}

TEST(Legality, NamesEveryProblemAtOnce) {
  const Asked request{
      .ranks = 7, .pipeline = 2, .tensor = 5, .microbatches = 3, .batch = 4, .offloading = true};
  EXPECT_EQ(problems_of(request).size(), 4U);
}

TEST(Legality, RemediesAreOfOneBatchWhateverIsAccumulated) {
  const Asked request{.ranks = 2, .pipeline = 2, .microbatches = 3, .batch = 4, .accumulated = 2};
  const auto problems = problems_of(request);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_THAT(problems[0].what, HasSubstr("a batch of 4 does not divide into 3 microbatches"));
  EXPECT_THAT(problems[0].remedy, HasSubstr("1, 2, 4"));
}

TEST(Legality, AllowsValidPlans) {
  EXPECT_THAT(problems_of({}), IsEmpty());
  EXPECT_THAT(problems_of({.ranks = 24,
                           .pipeline = 2,
                           .tensor = 3,
                           .schedule = ScheduleKind::zero_bubble,
                           .microbatches = 4,
                           .batch = 8,
                           .length = 510,
                           .prescaled_batch = true,
                           .sharding = 3,
                           .sharded_degree = 2,
                           .checkpointing = true,
                           .offloading = true}),
              IsEmpty());
}

TEST(Legality, ReportsOptionsWithoutEffect) {
  EXPECT_THAT(idle_of({}), IsEmpty());
  EXPECT_THAT(idle_of({.speed = true}), ElementsAre(HasSubstr("tensor_parallel_degree is 1")));
  EXPECT_THAT(idle_of({.ranks = 2, .tensor = 2, .speed = true, .sharding = 1}),
              ElementsAre(HasSubstr("without prescaled_batch"), HasSubstr("one replica")));
  EXPECT_THAT(idle_of({.ranks = 4, .sharding = 2, .sharded_degree = 1}),
              ElementsAre(HasSubstr("a shard group of one rank")));
  EXPECT_THAT(idle_of({.ranks = 4, .sharded_degree = 2}),
              ElementsAre(HasSubstr("sharded_data_parallel_degree 2 changes nothing")));
  EXPECT_THAT(idle_of({.ranks = 4, .sharded_degree = 1}), IsEmpty());
  EXPECT_THAT(idle_of({.schedule = ScheduleKind::one_f_one_b}),
              ElementsAre(HasSubstr("a pipeline of one rank")));
}

}  // namespace
}  // namespace shoal::parallel
