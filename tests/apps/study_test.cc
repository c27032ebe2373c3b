// The arithmetic, table and page of `shoal scale`.
#include "scale/study.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal::app {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StudyOptions options() { return {.ranks = {1, 2, 4}, .workers = {0, 12}, .batches = {16, 32}}; }

std::string error_of(const StudyOptions& options) {
  try {
    plan_study(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Study, EveryRunHasTheSameExamples) {
  const Study study = plan_study(options());
  ASSERT_EQ(study.cells.size(), 12U);
  EXPECT_EQ(study.examples, 12 * 4 * 32);
  for (const StudyCell& cell : study.cells)
    EXPECT_EQ(cell.steps * cell.ranks * cell.batch, study.examples) << cell.name();
  EXPECT_EQ(study.cells[0].name(), "ranks1-workers0-batch16");
  EXPECT_EQ(study.cells[1].name(), "ranks1-workers12-batch16");
  EXPECT_EQ(study.cells[2].name(), "ranks1-workers0-batch32");
  auto odd = options();
  odd.ranks = {1, 3};
  EXPECT_EQ(plan_study(odd).examples % (3 * 32), 0);
}

TEST(Study, ErrorsAreOneLineWithTheRemedy) {
  auto o = options();
  o.examples = 1000;
  EXPECT_EQ(error_of(o),
            "1000 examples are not a whole number of steps in every run: steps take up to 128 "
            "samples; give --examples 896 or 1024");
  o.examples = 128;
  EXPECT_THAT(error_of(o), HasSubstr("128 examples are one step on 4 ranks with batches of 32; "
                                     "give --examples 256 or more"));
  o.examples = -128;
  EXPECT_THAT(error_of(o), HasSubstr("--examples is -128"));
  o = options();
  o.ranks = {};
  EXPECT_THAT(error_of(o), HasSubstr("--ranks is empty"));
  o.ranks = {2, 0};
  EXPECT_THAT(error_of(o), HasSubstr("--ranks has 0; 1 to 4096 are possible"));
  o = options();
  o.workers = {0, -1};
  EXPECT_THAT(error_of(o), HasSubstr("--workers has -1"));
  o.workers = {2, 0, 2};
  EXPECT_THAT(error_of(o), HasSubstr("--workers has 2 twice"));
  o = options();
  o.ranks = {4093, 4091, 4079, 4073};
  EXPECT_THAT(error_of(o), HasSubstr("no number of examples below 10^12"));
}

// The published study: 2, 4, 8 and 16 nodes, and the gain from workers at batch 16.
TEST(Study, GainAndEfficiencyAreThePublishedOnes) {
  const double speeds[] = {3235, 5437, 8094, 10814};
  const double gains[] = {0.16, 0.24, 0.41, 0.60};
  const double efficiency[] = {1, 0.84, 0.63, 0.42};
  std::vector<StudyResult> results;
  for (int i = 0; i < 4; ++i) {
    const std::int64_t nodes = std::int64_t{2} << i;
    results.push_back({{nodes, 0, 16, 100}, speeds[i], 0.3});
    results.push_back({{nodes, 12, 16, 100}, speeds[i] * (1 + gains[i]), 0});
  }
  const auto rows = evaluate_study(results);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows[2 * i].gain, 0);
    EXPECT_NEAR(rows[2 * i].efficiency, efficiency[i], 0.005);
    EXPECT_NEAR(rows[2 * i + 1].gain, gains[i], 1e-9);
  }
  const std::string table = study_table(rows);
  EXPECT_THAT(table, HasSubstr("    16       12     16      17302.4            +60 %"));
  EXPECT_THAT(table, HasSubstr("     4        0     16       5437.0                         0.84"));
  const auto json = study_json(rows, 6400);
  EXPECT_EQ(json["examples"], 6400);
  EXPECT_EQ(json["runs"].size(), 8U);
  EXPECT_NEAR(json["runs"][7]["gain_over_0_workers"].get<double>(), 0.6, 1e-9);
  EXPECT_EQ(json["runs"][0]["loader_stall_share"], 0.3);
}

TEST(Study, WithoutARunWithoutWorkersThereIsNoGain) {
  const auto rows = evaluate_study({{{1, 2, 8, 10}, 50, 0}, {{2, 2, 8, 10}, 80, 0}});
  EXPECT_TRUE(std::isnan(rows[0].gain));
  EXPECT_NEAR(rows[1].efficiency, 0.8, 1e-12);
  EXPECT_TRUE(study_json(rows, 80)["runs"][0]["gain_over_0_workers"].is_null());
}

TEST(Study, ThePageNeedsNothingElse) {
  const auto rows = evaluate_study({{{1, 0, 8, 10}, 50, 0.5},
                                    {{1, 4, 8, 10}, 90, 0},
                                    {{2, 0, 8, 5}, 70, 0.5},
                                    {{2, 4, 8, 5}, 150, 0}});
  const std::string page = study_page(rows, 80, "a <b> & c");
  EXPECT_THAT(page, HasSubstr("<h1>a &lt;b&gt; &amp; c</h1>"));
  EXPECT_THAT(
      page,
      HasSubstr("<title>ranks 2\n0 workers, batch 8: 70.00\n4 workers, batch 8: 150.0</title>"));
  EXPECT_THAT(page, HasSubstr("+114 %"));
  for (const char* outside : {"http", "src=", "href", "<script", "@import", "nan", "inf,"})
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  const auto count = [&](std::string_view what) {
    int found = 0;
    for (auto at = page.find(what); at != page.npos; at = page.find(what, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<svg class=\"plot"), 2);
  EXPECT_EQ(count("<path class=\"c c"), 4);
  EXPECT_EQ(count("<circle"), 8);
  // A single number of ranks also gives a valid chart.
  EXPECT_THAT(study_page(evaluate_study({{{1, 0, 8, 10}, 50, 0}}), 80, "one"),
              Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace shoal::app
