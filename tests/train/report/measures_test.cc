// Figures derived from a run's records.
#include "shoal/train/report/measures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal::report {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

TEST(Throughput, IsOfTheStepsSinceTheRecordBefore) {
  const RunLog run = parse_run(
      R"({"loss": 1, "step": 10, "tokens_seen": 1000, "step_seconds": 0.5, "elapsed": 5, "tokens_per_second": 200}
{"loss": 1, "step": 20, "tokens_seen": 3000, "step_seconds": 0.25, "elapsed": 60, "tokens_per_second": 50}
)");
  const Throughput rate = throughput(run);
  EXPECT_TRUE(rate.tokens);
  EXPECT_FALSE(rate.with_pauses);
  EXPECT_THAT(rate.series.x, ElementsAre(10, 20));
  EXPECT_THAT(rate.series.y, ElementsAre(DoubleEq(200), DoubleEq(800)));  // 47.5 s were a pause
}

TEST(Throughput, OlderFilesHaveLess) {
  const Throughput paused = throughput(parse_run(
      R"({"loss": 1, "step": 10, "tokens_seen": 1000, "elapsed": 5}
{"loss": 1, "step": 20, "tokens_seen": 3000, "elapsed": 10}
{"loss": 1, "step": 30, "tokens_seen": 4000, "elapsed": 2, "tokens_per_second": 90}
)"));
  EXPECT_TRUE(paused.with_pauses);
  // The clock restarted when the run was continued, so that record has only its own mean.
  EXPECT_THAT(paused.series.y, ElementsAre(DoubleEq(200), DoubleEq(400), DoubleEq(90)));
  EXPECT_TRUE(throughput(parse_run("{\"loss\": 1, \"step\": 1}\n")).series.x.empty());
  RunLog samples = parse_run("{\"loss\": 1, \"step\": 1, \"step_seconds\": 0.5}\n");
  samples.settings["global_batch_size"] = 16;
  const Throughput rate = throughput(samples);
  EXPECT_FALSE(rate.tokens);
  EXPECT_THAT(rate.series.y, ElementsAre(32));
}

TEST(Phases, TogetherAreTheStep) {
  const RunLog run = parse_run(
      R"({"loss": 1, "step": 1, "step_seconds": 9, "data_seconds": 1, "forward_seconds": 2, "backward_seconds": 3, "optimizer_seconds": 1}
{"loss": 1, "step": 2, "step_seconds": 8, "data_seconds": 0, "forward_seconds": 2, "backward_seconds": 4, "optimizer_seconds": 1, "communication_seconds": 1}
)");
  const std::vector<Phase> parts = phases(run);
  ASSERT_EQ(parts.size(), 6U);
  EXPECT_EQ(parts[0].column, "data_seconds");
  EXPECT_EQ(parts.back().column, "");
  EXPECT_THAT(parts.back().seconds.y, ElementsAre(2, 0));
  for (std::size_t i = 0; i < 2; ++i) {
    double whole = 0;
    for (const Phase& part : parts) whole += part.seconds.y[i];
    EXPECT_DOUBLE_EQ(whole, i == 0 ? 9 : 8);
  }
  EXPECT_TRUE(phases(parse_run("{\"loss\": 1, \"step\": 1, \"data_seconds\": 1}\n")).empty());
  EXPECT_TRUE(phases(parse_run("")).empty());
}

TEST(Phases, TheFirstRecordWarmsUp) {
  std::string text;
  for (const double seconds : {100.0, 2.0, 3.0, 4.0})
    text += "{\"loss\": 1, \"step_seconds\": " + std::to_string(seconds) +
            ", \"forward_seconds\": " + std::to_string(seconds) + "}\n";
  EXPECT_DOUBLE_EQ(phases(parse_run(text))[0].mean, 3);
}

TEST(Numbers, AreTheOnesThatTheRunHas) {
  const RunLog run = parse_run(
      R"({"eval_loss": 5, "eval_accuracy": 0.25, "eval_runtime": 2, "step": 0}
{"loss": 4, "step": 5}
{"loss": null, "step": 10}
{"eval_loss": 3, "eval_accuracy": 0.75, "eval_runtime": 2, "step": 10}
{"eval_loss": 3.5, "eval_accuracy": 0.5, "eval_runtime": 2, "step": 15}
)");
  const auto numbers = numbers_of(run);
  const auto value = [&](const char* key) {
    const Number* number = find(numbers, key);
    return number == nullptr ? -1 : number->value;
  };
  EXPECT_EQ(value("steps"), 15);
  EXPECT_EQ(value("loss_first"), 4);
  EXPECT_EQ(value("loss"), -1);  // the run's last one is not finite
  EXPECT_EQ(value("eval_loss_first"), 5);
  EXPECT_EQ(value("eval_loss"), 3.5);
  EXPECT_EQ(value("eval_loss_best"), 3);
  EXPECT_EQ(value("eval_accuracy"), 0.5);
  EXPECT_EQ(value("eval_runtime"), -1);
  EXPECT_EQ(value("tokens_per_second"), -1);
  EXPECT_EQ(find(numbers, "eval_accuracy")->better, 1);
  EXPECT_EQ(find(numbers, "eval_loss")->better, -1);
  EXPECT_THAT(metric_names(run.evaluations), ElementsAre("eval_accuracy"));
  EXPECT_EQ(numbers_of(parse_run("")).size(), 1U);  // no steps
}

TEST(Scaling, IsRelativeToTheFewestRanks) {
  const auto points =
      scaling(std::vector<Measured>{{4, 300}, {1, 100}, {2, 160}, {1, 120}, {1, 80}});
  ASSERT_EQ(points.size(), 3U);
  EXPECT_EQ(points[0].ranks, 1);
  EXPECT_EQ(points[0].runs, 3);
  EXPECT_DOUBLE_EQ(points[0].throughput, 100);  // the median
  EXPECT_DOUBLE_EQ(points[0].efficiency, 1);
  EXPECT_DOUBLE_EQ(points[1].efficiency, 0.8);
  EXPECT_DOUBLE_EQ(points[2].efficiency, 0.75);
  const auto from_two = scaling(std::vector<Measured>{{2, 100}, {8, 300}});
  EXPECT_DOUBLE_EQ(from_two[1].efficiency, 0.75);
  EXPECT_TRUE(scaling(std::vector<Measured>{{2, 100}, {2, 300}}).empty());
  EXPECT_TRUE(scaling(std::vector<Measured>{{0, 100}, {2, 300}, {4, -1}}).empty());  // not known
}

TEST(BetterDirection, IsKnownForMetrics) {
  EXPECT_EQ(better_direction("eval_accuracy"), 1);
  EXPECT_EQ(better_direction("eval_f1"), 1);
  EXPECT_EQ(better_direction("eval_loss"), -1);
  EXPECT_EQ(better_direction("eval_perplexity"), -1);
}

}  // namespace
}  // namespace shoal::report
