// The requests that the SageMaker Python SDK sends for the same arguments
// (tools/golden/make_sagemaker_requests.py).
#include <algorithm>
#include <chrono>
#include <ctime>
#include <regex>

#include "support/source_tree.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/sagemaker/job/job.h"
#include "shoal/sagemaker/job/metric_definitions.h"

namespace shoal::sagemaker {
namespace {

Json golden() {
  return read_job_file(testing::source_path("tests/golden/sagemaker/requests.json"));
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  const Json all = golden();
  for (const Json& one : all.at("cases")) names.push_back(one.at("name"));
  return names;
}

// 2026-11-23 08:20:59.123, the time stamp in the golden file.
std::chrono::system_clock::time_point moment() {
  std::tm utc{};
  utc.tm_year = 126;
  utc.tm_mon = 10;
  utc.tm_mday = 23;
  utc.tm_hour = 8;
  utc.tm_min = 20;
  utc.tm_sec = 59;
  return std::chrono::system_clock::from_time_t(::timegm(&utc)) + std::chrono::milliseconds(123);
}

class Requests : public ::testing::TestWithParam<std::string> {};

TEST_P(Requests, AreThoseOfTheSdk) {
  const Json all = golden();
  const auto found = std::ranges::find(all.at("cases"), GetParam(), [](const Json& one) {
    return one.at("name").get<std::string>();
  });
  Json expected = found->at("request");
  const Json& job = found->at("job");
  // The only known difference: a job without metric_definitions gets those for the trainer's log.
  if (!job.contains("metric_definitions")) {
    ASSERT_FALSE(expected["AlgorithmSpecification"].contains("MetricDefinitions"));
    expected["AlgorithmSpecification"]["MetricDefinitions"] = default_metric_definitions();
  }
  const TrainingJob made = make_training_job(job, {.region = {}, .now = moment()});
  // Compared as nlohmann::json, whose objects have no order.
  const nlohmann::json ours = nlohmann::json::parse(made.request.dump());
  const nlohmann::json theirs = nlohmann::json::parse(expected.dump());
  EXPECT_EQ(ours, theirs) << nlohmann::json::diff(theirs, ours).dump(1);
}

INSTANTIATE_TEST_SUITE_P(Sdk, Requests, ::testing::ValuesIn(case_names()),
                         [](const auto& of) { return of.param; });

TEST(RequestsFile, HasTwelveCasesOrMore) { EXPECT_GE(case_names().size(), 12U); }

// The Hugging Face estimator drops smdistributed's keys if torch_distributed is set. PyTorch's
// estimator and Shoal send both.
TEST(Requests, SendBothOfTorchDistributedAndSmdistributed) {
  const Json job = {{"role", "arn:aws:iam::111122223333:role/R"},
                    {"region", "us-east-1"},
                    {"image_uri", "x/shoal:1-cuda13"},
                    {"instance_type", "ml.p5.48xlarge"},
                    {"instance_count", 1},
                    {"distribution",
                     {{"torch_distributed", {{"enabled", true}}},
                      {"smdistributed", {{"dataparallel", {{"enabled", true}}}}}}}};
  const TrainingJob made = make_training_job(job, {.region = {}, .now = moment()});
  const Json& sent = made.request.at("HyperParameters");
  EXPECT_EQ(sent.at("sagemaker_torch_distributed_enabled"), "true");
  EXPECT_EQ(sent.at("sagemaker_distributed_dataparallel_enabled"), "true");
}

TEST(JobName, IsCutTo63Characters) {
  const std::string name = job_name_from(std::string(80, 'a'), moment());
  EXPECT_EQ(name, std::string(39, 'a') + "-2026-11-23-08-20-59-123");
}

TEST(Metrics, AreFoundInTheTrainersLines) {
  const std::string line =
      "[1,mpirank:5,algo-1]<stdout>:{'loss': 1.1406, 'grad_norm': 2.5, 'learning_rate': 4.44e-05, "
      "'epoch': 0.26}";
  const std::string end =
      "{'train_runtime': 225.8005, 'train_samples_per_second': 3.543, 'train_steps_per_second': "
      "0.886, 'train_loss': 2.25, 'epoch': 3.0}";
  const Json metrics = default_metric_definitions();
  const auto value = [&](const std::string& name, const std::string& text) -> std::string {
    for (const Json& metric : metrics) {
      std::smatch match;
      if (metric.at("Name") == name &&
          std::regex_search(text, match, std::regex(metric.at("Regex").get<std::string>())))
        return match[1];
    }
    return "none";
  };
  EXPECT_EQ(value("loss", line), "1.1406");
  EXPECT_EQ(value("learning_rate", line), "4.44e-05");
  EXPECT_EQ(value("eval_loss", line), "none");
  EXPECT_EQ(value("loss", end), "none");
  EXPECT_EQ(value("train_loss", end), "2.25");
  EXPECT_EQ(value("train_samples_per_second", end), "3.543");
}

}  // namespace
}  // namespace shoal::sagemaker
