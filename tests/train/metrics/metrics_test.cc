// Against scikit-learn, SciPy and torchmetrics (tools/golden/make_metrics.py).
#include <cmath>

#include "support/golden.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/metrics/classification.h"
#include "shoal/train/metrics/glue.h"
#include "shoal/train/metrics/squad.h"

namespace shoal {
namespace {

using nlohmann::json;

json golden(const char* part) {
  return json::parse(read_text_file(testing::golden_path("metrics.json"))).at(part);
}

TEST(Metrics, ForClassesEqualScikitLearns) {
  for (const json& row : golden("classes")) {
    const auto predictions = row["predictions"].get<std::vector<std::int64_t>>();
    const auto labels = row["labels"].get<std::vector<std::int64_t>>();
    EXPECT_DOUBLE_EQ(accuracy(predictions, labels), row["accuracy"]) << row;
    EXPECT_NEAR(matthews_correlation(predictions, labels), row["matthews_correlation"], 1e-15)
        << row;
    if (row.contains("f1")) {
      EXPECT_DOUBLE_EQ(f1_score(predictions, labels), row["f1"]) << row;
    }
  }
}

TEST(Metrics, ForScoresEqualScipys) {
  for (const json& row : golden("scores")) {
    const auto predictions = row["predictions"].get<std::vector<double>>();
    const auto labels = row["labels"].get<std::vector<double>>();
    EXPECT_NEAR(pearson_correlation(predictions, labels), row["pearson"], 1e-13) << row;
    EXPECT_NEAR(spearman_correlation(predictions, labels), row["spearmanr"], 1e-13) << row;
  }
}

TEST(Metrics, ForAnswersEqualTheOfficialScripts) {
  for (const json& row : golden("answers")) {
    const auto accepted = row["accepted"].get<std::vector<std::string>>();
    const AnswerScore score = score_answer(row["prediction"].get<std::string>(), accepted);
    EXPECT_EQ(score.exact_match, row["exact_match"]) << row;
    EXPECT_NEAR(score.f1, row["f1"], 1e-6) << row;  // torchmetrics computes in f32
  }
}

TEST(Metrics, NormalizeAnswers) {
  EXPECT_EQ(normalize_answer("  The (quick)  a-n fox's\tden "), "quick foxs den");
  EXPECT_EQ(normalize_answer("theatre an anthem"), "theatre anthem");
  EXPECT_EQ(normalize_answer(""), "");
  EXPECT_EQ(normalize_answer("\x1d"
                             "fox\x1c"
                             "den\xC2\x85hen\xE2\x80\x83 "),
            "fox den hen");
}

TEST(Metrics, AreUndefinedForEmptyOrConstantInputs) {
  EXPECT_TRUE(std::isnan(accuracy({}, {})));
  EXPECT_TRUE(std::isnan(f1_score({}, {})));
  EXPECT_TRUE(std::isnan(matthews_correlation({}, {})));
  EXPECT_TRUE(std::isnan(pearson_correlation(std::vector<double>{1}, std::vector<double>{1})));
  EXPECT_TRUE(std::isnan(spearman_correlation(std::vector{1.0, 1.0}, std::vector{1.0, 2.0})));
  EXPECT_THROW(accuracy(std::vector<std::int64_t>{1}, {}), Error);
  EXPECT_THROW(score_answer("x", {}), Error);
}

TEST(Metrics, ForGlueAreThoseOfTheTask) {
  const std::vector<double> predictions = {1, 0, 1, 1, 0}, labels = {1, 0, 0, 1, 1};
  const auto of = [&](const char* name) {
    return glue_metrics(glue_task(name), predictions, labels);
  };
  EXPECT_EQ(of("SST-2"), (std::map<std::string, double>{{"accuracy", 0.6}}));
  EXPECT_NEAR(of("cola").at("matthews_correlation"), 1.0 / 6, 1e-15);
  const auto mrpc = of("mrpc");
  EXPECT_DOUBLE_EQ(mrpc.at("f1"), 2.0 / 3);
  EXPECT_DOUBLE_EQ(mrpc.at("combined_score"), (0.6 + 2.0 / 3) / 2);
  EXPECT_EQ(of("stsb").size(), 3u);
  EXPECT_EQ(glue_tasks().size(), 9u);
  try {
    glue_task("mnlli");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "GLUE has no task 'mnlli'; did you mean mnli? There are cola, mnli, mrpc, qnli, "
                 "qqp, rte, sst2, stsb, wnli");
  }
}

}  // namespace
}  // namespace shoal
