// The file, arithmetic, table and page of `shoal study`.
#include "study/study.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Json file() {
  return {
      {"config", "run.json"}, {"ranks", {1, 2, 4}}, {"workers", {0, 12}}, {"batches", {16, 32}}};
}

StudyOptions read(const Json& file) { return read_study(file, "a study", {1, 2}); }

Json with(const char* name, Json value) {
  Json changed = file();
  changed[name] = std::move(value);
  return changed;
}

std::string error_of(const Json& file) {
  try {
    plan_study(read(file));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Study, EveryRunHasTheSameExamples) {
  const Study study = plan_study(read(file()));
  ASSERT_EQ(study.cells.size(), 12U);
  EXPECT_EQ(study.examples, 12 * 4 * 32);
  for (const StudyCell& cell : study.cells)
    EXPECT_EQ(cell.steps * cell.ranks * cell.batch, study.examples) << cell.name();
  EXPECT_EQ(study.cells[0].name(), "ranks1-workers0-batch16-native");
  EXPECT_EQ(study.cells[1].name(), "ranks1-workers12-batch16-native");
  EXPECT_EQ(study.cells[2].name(), "ranks1-workers0-batch32-native");
  EXPECT_EQ(plan_study(read(with("ranks", {1, 3}))).examples % (3 * 32), 0);
}

TEST(Study, TheRestHasDefaults) {
  const StudyOptions o = read({{"options", {{"model_type", "gpt2"}}}});
  EXPECT_EQ(o.name, "a study");
  EXPECT_THAT(o.ranks, ElementsAre(1, 2));
  EXPECT_THAT(o.workers, ElementsAre(0, 2));
  EXPECT_THAT(o.batches, ElementsAre(8, 16));
  EXPECT_THAT(o.backends, ElementsAre("native"));
  EXPECT_EQ(plan_study(o).cells[0].nodes, 1);
}

TEST(Study, NodesHaveRanks) {
  Json of_nodes = file();
  of_nodes.erase("ranks");
  of_nodes["nodes"] = {1, 2};
  of_nodes["ranks_per_node"] = 8;
  const Study study = plan_study(read(of_nodes));
  EXPECT_EQ(study.cells.front().ranks, 8);
  EXPECT_EQ(study.cells.back().ranks, 16);
  EXPECT_EQ(study.cells.back().nodes, 2);
}

TEST(Study, ErrorsAreOneLineWithTheRemedy) {
  EXPECT_EQ(error_of(with("examples", 1000)),
            "/examples: 1000 are not a whole number of steps in every run: steps take up to 128 "
            "samples; give 896 or 1024");
  EXPECT_EQ(error_of(with("examples", 128)),
            "/examples: 128 are one step on 4 ranks with batches of 32; give 256 or more");
  EXPECT_THAT(error_of(with("examples", -128)), HasSubstr("/examples: is -128"));
  EXPECT_EQ(error_of(with("ranks", Json::array())),
            "/ranks: is []; a list of numbers is needed, such as [1, 2]");
  EXPECT_THAT(error_of(with("ranks", 2)), HasSubstr("/ranks: is 2; a list"));
  EXPECT_EQ(error_of(with("ranks", {2, 0})),
            "/ranks: has 0; whole numbers from 1 to 4096 are possible");
  EXPECT_THAT(error_of(with("workers", {0, -1})), HasSubstr("/workers: has -1"));
  EXPECT_THAT(error_of(with("workers", {0, "2"})), HasSubstr("/workers: has \"2\""));
  EXPECT_EQ(error_of(with("workers", {2, 0, 2})), "/workers: has 2 twice");
  EXPECT_THAT(error_of(with("ranks", {4093, 4091, 4079, 4073})),
              HasSubstr("no number of examples below 10^12"));
  EXPECT_EQ(error_of(with("wokers", {0})), "/wokers: there is no such key; did you mean workers?");
  EXPECT_THAT(error_of(with("nodes", {1, 2})), HasSubstr("/ranks: excludes nodes"));
  EXPECT_THAT(error_of(with("options", {{"max_steps", 5}})),
              HasSubstr("/options: sets max_steps, which the study sets"));
  EXPECT_THAT(error_of(with("options", "--bf16 true")), HasSubstr("/options: is \"--bf16 true\""));
  EXPECT_EQ(error_of(with("backends", {"native", "ncll"})),
            "/backends/1: \"ncll\" is not one of native, nccl, mpi, ddp, ddp-shoal; did you mean "
            "nccl?");
  EXPECT_THAT(error_of(with("backends", {"mpi", "mpi"})), HasSubstr("has mpi twice"));
  EXPECT_THAT(error_of(with("backends", {"ddp"})), HasSubstr("/script: is missing"));
  EXPECT_THAT(error_of(with("script", "run_clm.py")), HasSubstr("/script: is for the backends"));
  EXPECT_THAT(error_of(with("launch", "srun")), HasSubstr("write {ranks} there, or {nodes}"));
  EXPECT_THAT(error_of(with("job", "job.json")),
              HasSubstr("/config: excludes job: SageMaker starts what the job names\n/nodes: is "
                        "missing"));
  EXPECT_THAT(error_of(with("price_per_hour", "3")), HasSubstr("/price_per_hour: is \"3\""));
  EXPECT_THAT(error_of({{"ranks", {1}}}), HasSubstr("what is to be trained? Give config"));
}

// The published study: 2, 4, 8 and 16 nodes, and the gain from workers at batch 16.
TEST(Study, GainAndEfficiencyAreThePublishedOnes) {
  const double speeds[] = {3235, 5437, 8094, 10814};
  const double gains[] = {0.16, 0.24, 0.41, 0.60};
  const double efficiency[] = {1, 0.84, 0.63, 0.42};
  const StudyOptions o = read(with("price_per_hour", 36));
  std::vector<StudyResult> results;
  for (int i = 0; i < 4; ++i) {
    const std::int64_t nodes = std::int64_t{2} << i;
    results.push_back({{nodes, 1, 0, 16, 100}, speeds[i], 0.3, 50});
    results.push_back({{nodes, 1, 12, 16, 100}, speeds[i] * (1 + gains[i]), 0, 25});
  }
  const auto rows = evaluate_study(results, o);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows[2 * i].gain, 0);
    EXPECT_NEAR(rows[2 * i].efficiency, efficiency[i], 0.005);
    EXPECT_NEAR(rows[2 * i + 1].gain, gains[i], 1e-9);
    EXPECT_EQ(rows[2 * i].cost, 0.5);
  }
  const std::string table = study_table(rows, o);
  EXPECT_THAT(table, HasSubstr("ranks  workers  batch  backend  steps  samples/s  gain over 0 "
                               "workers  efficiency  stall share  node seconds  cost\n"));
  EXPECT_THAT(table, HasSubstr("17302.4                +60 %"));
  EXPECT_THAT(table,
              HasSubstr("5437.0                             0.84         0.30            50  "
                        "0.50\n"));
  const auto json = study_json(rows, {std::vector<StudyCell>(9), 6400});
  EXPECT_EQ(json["examples"], 6400);
  EXPECT_EQ(json["missing_runs"], 1);
  EXPECT_EQ(json["runs"].size(), 8U);
  EXPECT_NEAR(json["runs"][7]["gain_over_0_workers"].get<double>(), 0.6, 1e-9);
  EXPECT_EQ(json["runs"][0]["loader_stall_share"], 0.3);
}

TEST(Study, BackendsAreComparedWithTheFirst) {
  const StudyOptions o = read(with("backends", {"native", "mpi"}));
  const std::vector<StudyResult> results = {{{1, 1, 2, 8, 10, "native"}, 50},
                                            {{1, 1, 2, 8, 10, "mpi"}, 40},
                                            {{2, 1, 2, 8, 10, "native"}, 80},
                                            {{2, 1, 2, 8, 10, "mpi"}, 20}};
  const auto rows = evaluate_study(results, o);
  EXPECT_TRUE(std::isnan(rows[0].gain)) << "no run without workers";
  EXPECT_TRUE(study_json(rows, {})["runs"][0]["gain_over_0_workers"].is_null());
  EXPECT_NEAR(rows[2].efficiency, 0.8, 1e-12);
  EXPECT_NEAR(rows[3].efficiency, 0.25, 1e-12);
  EXPECT_NEAR(rows[3].over_first, 0.25, 1e-12);
  const auto cells = study_cells(rows, o);
  EXPECT_THAT(cells[0], ElementsAre("ranks", "workers", "batch", "backend", "steps", "samples/s",
                                    "efficiency", "over native", "stall share", "node seconds"));
  EXPECT_THAT(cells[4],
              ElementsAre("2", "2", "8", "mpi", "10", "20.0", "0.25", "0.25", "0.00", "0"));
}

TEST(Study, AJobGetsTheRunsOptions) {
  const Json job = {{"job_name", "x"},
                    {"instance_count", 9},
                    {"hyperparameters", {{"seed", 1}, {"max_steps", 7}}}};
  StudyOptions o;
  o.options = {{"bf16", true}};
  const Json made = job_of(job, o, {16, 2, 4, 8, 20, "nccl"});
  EXPECT_FALSE(made.contains("job_name"));
  EXPECT_EQ(made["instance_count"], 2);
  const Json& options = made["hyperparameters"];
  EXPECT_EQ(options["seed"], 1);
  EXPECT_EQ(options["bf16"], true);
  EXPECT_EQ(options["max_steps"], 20);
  EXPECT_EQ(options["per_device_train_batch_size"], 8);
  EXPECT_EQ(options["dataloader_num_workers"], 4);
  EXPECT_EQ(options["ddp_backend"], "nccl");
}

TEST(Study, ThePageNeedsNothingElse) {
  StudyOptions o = read(file());
  o.name = "a <b> & c";
  const auto rows = evaluate_study({{{1, 1, 0, 8, 10}, 50, 0.5, 4, {{40, 3.5}, {80, 2.5}}},
                                    {{1, 1, 4, 8, 10}, 90, 0, 4, {{40, 3.25}, {80, 2.25}}},
                                    {{2, 1, 0, 8, 5}, 70, 0.5, 4},
                                    {{2, 1, 4, 8, 5}, 150, 0, 4}},
                                   o);
  const std::string page = study_page(rows, {std::vector<StudyCell>(5), 80}, o);
  EXPECT_THAT(page, HasSubstr("<h1>a &lt;b&gt; &amp; c</h1>"));
  EXPECT_THAT(page, HasSubstr("1 of 5 runs are still missing"));
  EXPECT_THAT(
      page,
      HasSubstr("<title>ranks 2\n0 workers, batch 8: 70.00\n4 workers, batch 8: 150.0</title>"));
  EXPECT_THAT(page, HasSubstr("1 rank, 4 workers, batch 8: 2.250"));
  EXPECT_THAT(page, HasSubstr("+114 %"));
  for (const char* outside : {"http", "src=", "href", "<script", "@import", "nan", "inf,"})
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  const auto count = [&](std::string_view what) {
    int found = 0;
    for (auto at = page.find(what); at != page.npos; at = page.find(what, at + 1)) ++found;
    return found;
  };
  // 8 values in two plots, and 4 losses, which are drawn for phones too.
  EXPECT_EQ(count("<circle"), 16);
  // A single number of ranks also gives a valid chart.
  EXPECT_THAT(study_page(evaluate_study({{{1, 1, 0, 8, 10}, 50, 0}}, o), {}, o),
              Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace shoal::app
