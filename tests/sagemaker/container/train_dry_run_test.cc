// The entry point's report of what it would do.
#include <string>
#include <utility>
#include <vector>

#include "sagemaker/container/train_fixture.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal::sagemaker {
namespace {

using test::ProgramOptions;
using test::ProgramResult;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = OptMl::Json;

using TrainDryRun = Train;

TEST_F(TrainDryRun, ShowsWhatItWouldDo) {
  OptMl ml({"algo-1", "algo-2"}, "algo-1");
  fill(ml, hyperparameters(3, {{"sagemaker_mpi_enabled", "true"}}));
  const ProgramResult result = train(ml, {"--dry-run"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json shown = Json::parse(result.out);
  EXPECT_EQ(shown.at("role"), "master of mpirun");
  EXPECT_EQ(shown.at("environment").at("SM_HP_MAX_STEPS"), "3");
  EXPECT_THAT(result.out, HasSubstr("\"AWS_SECRET_ACCESS_KEY\""));  // forwarded by name
  EXPECT_THAT(result.out, Not(HasSubstr("geheim")));
  fill(ml, hyperparameters(3, {{"api-key", "\"s3cret\""}}));
  const ProgramResult hidden = train(ml, {"--dry-run"});
  EXPECT_EQ(Json::parse(hidden.out).at("environment").at("SM_HP_API-KEY"), "***");
  EXPECT_THAT(hidden.out, Not(HasSubstr("s3cret")));
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"sagemaker_mpi_custom_mpi_options", "\"-x HF_TOKEN=s3cret --verbose\""},
           {"sagemaker_mpi_custom_mpi_options", "\"--env=HF_TOKEN=s3cret\""},
           {"uri", "\"mongodb://u:s3cret@h/x\""},
           {"from", "\"https://h/x?v=1&token=s3cret\""},
           {"hub", "{\"token\": \"s3cret\"}"}}) {
    fill(ml, hyperparameters(3, {{"sagemaker_mpi_enabled", "true"}, {name, value}}));
    EXPECT_THAT(train(ml, {"--dry-run"}).out, Not(HasSubstr("s3cret"))) << name << value;
  }
}

TEST_F(TrainDryRun, LeavesNoFiles) {
  OptMl ml;
  fill_with_archive(ml);
  const testing::TemporaryDirectory aside;
  const ProgramOptions there{.environment = {"TMPDIR=" + aside.path()}};
  const std::string before = listing(ml.root());
  const ProgramResult result = train(ml, {"--dry-run"}, there);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out).at("command").at(2), ml.path("code/run.json"));
  Json wrong = hyperparameters(2, {{"sagemaker_program", "\"train.sh\""}});
  EXPECT_EQ(listing(ml.root()), before);
  ml.hyperparameters(wrong);
  const ProgramResult refused = train(ml, {"--dry-run"}, there);
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("this image runs Shoal"));
  EXPECT_EQ(listing(ml.root()), before);
  EXPECT_EQ(listing(aside.path()), "");
}

}  // namespace
}  // namespace shoal::sagemaker
