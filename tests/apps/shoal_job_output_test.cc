// `shoal report` of SageMaker jobs, and `shoal study` of them: the real program with fake AWS
// services on loopback.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/shoal_fixture.h"
#include "sagemaker/rest/fake_aws.h"
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

using nlohmann::json;
using test::FakeAws;

std::string text_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ShoalJobOutput : public ::testing::Test {
 protected:
  ProgramResult shoal(std::vector<std::string> words) {
    words.insert(words.begin(), SHOAL_PROGRAM);
    return test::run_program(words, {.directory = here_.path(), .environment = aws_.environment()});
  }
  // The files of a run of `examples` examples in 8 steps.
  static std::vector<std::pair<std::string, std::string>> run_of(int examples) {
    std::string metrics;
    for (int step = 1; step <= 8; ++step)
      metrics += json{{"step", step},
                      {"loss", 4 - step / 8.0},
                      {"elapsed", step * 0.5},
                      {"loader_stall_share", 0.25}}
                     .dump() +
                 "\n";
    metrics += json{{"train_runtime", 4.0}, {"step", 8}}.dump() + "\n";
    return {{"metrics.jsonl", metrics},
            {"run_settings.json", json{{"ranks", 2}, {"global_batch_size", 8}}.dump()},
            {"all_results.json",
             json{{"train_runtime", 4.0}, {"train_samples_per_second", examples / 4.0}}.dump()},
            {"model.safetensors", std::string(std::size_t{9} << 20U, 'm')}};
  }
  // A .tar.gz of the files, in a folder of the archive.
  std::string archive(const std::vector<std::pair<std::string, std::string>>& files,
                      const std::string& folder = ".") const {
    const std::filesystem::path root = here_ / "packed";
    std::filesystem::remove_all(root);
    for (const auto& [name, text] : files) {
      std::filesystem::create_directories((root / folder / name).parent_path());
      std::ofstream(root / folder / name, std::ios::binary) << text;
    }
    EXPECT_EQ(test::run_program({"tar", "-czf", here_ / "packed.tar.gz", "-C", root, "."}).status,
              0);
    return text_in(here_ / "packed.tar.gz");
  }
  static json with_model(const std::string& uri) {
    return {{"ModelArtifacts", {{"S3ModelArtifacts", uri}}}};
  }
  json report(const std::string& job) {
    const ProgramResult result = shoal({"report", job, "--json"});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.status == 0 ? json::parse(result.out).at(0) : json();
  }
  void refused(const std::vector<std::string>& words, const std::string& why) {
    const ProgramResult result = shoal(words);
    EXPECT_GT(result.status, 0) << result.out;
    EXPECT_THAT(result.err, HasSubstr(why));
    EXPECT_TRUE(is_one_line(result.err)) << result.err;
  }
  FakeAws aws_;
  testing::TemporaryDirectory here_;
};

TEST_F(ShoalJobOutput, ReportReadsTheModelsArchive) {
  aws_.put_object("bucket/out/a-job/output/model.tar.gz", archive(run_of(64)));
  aws_.add_job("a-job", with_model("s3://bucket/out/a-job/output/model.tar.gz"));
  const json numbers = report("a-job");
  EXPECT_EQ(numbers["run"], "a-job");
  EXPECT_EQ(numbers["ranks"], 2);
  EXPECT_EQ(numbers["loss"], 3.0);
  EXPECT_EQ(numbers["finished"], true);
  const ProgramResult page = shoal({"report", "a-job"});
  ASSERT_EQ(page.status, 0) << page.err;
  EXPECT_THAT(page.out, HasSubstr("page             report.html"));
  EXPECT_THAT(text_in(here_ / "report.html"), HasSubstr("<code>a-job</code>"));
  // A job beside a run of this machine.
  std::filesystem::create_directories(here_ / "near");
  for (const auto& [name, text] : run_of(64)) std::ofstream(here_ / ("near/" + name)) << text;
  const ProgramResult two = shoal({"report", "near", "a-job", "--json"});
  EXPECT_EQ(json::parse(two.out).size(), 2U) << two.err;
}

TEST_F(ShoalJobOutput, ReportFindsTheRunElsewhere) {
  // A script's own output, with the records of Hugging Face's Trainer.
  const json state = {{"log_history",
                       {{{"step", 1}, {"loss", 3.5}},
                        {{"step", 2}, {"loss", 2.5}},
                        {{"step", 2}, {"train_runtime", 1.0}}}}};
  aws_.put_object("bucket/s/output/model.tar.gz", archive({{"config.json", "{}"}}));
  aws_.put_object("bucket/s/output/output.tar.gz",
                  archive({{"trainer_state.json", state.dump()}}, "data/run"));
  aws_.add_job("script", with_model("s3://bucket/s/output/model.tar.gz"));
  EXPECT_EQ(report("script")["loss"], 2.5);
  // Files that are not packed, and those of a job that still trains.
  for (const auto& [name, text] : run_of(64)) aws_.put_object("bucket/plain/model/" + name, text);
  aws_.add_job("plain", with_model("s3://bucket/plain/model/"));
  EXPECT_EQ(report("plain")["loss"], 3.0);
  aws_.add_job("trains", {{"CheckpointConfig", {{"S3Uri", "s3://bucket/plain/model"}}}});
  EXPECT_EQ(report("arn:aws:sagemaker:us-east-1:1:training-job/trains")["loss"], 3.0);
}

TEST_F(ShoalJobOutput, ReportRefusesInOneLine) {
  aws_.add_job("none", with_model("s3://bucket/none/output/model.tar.gz"));
  refused({"report", "none"}, "bucket/none/output/model.tar.gz");
  aws_.put_object("bucket/empty/output/model.tar.gz", archive({{"readme.txt", "no run"}}));
  aws_.add_job("empty", with_model("s3://bucket/empty/output/model.tar.gz"));
  refused({"report", "empty"},
          "has left no metrics.jsonl in s3://bucket/empty/output/model.tar.gz");
  aws_.put_object("bucket/bad/output/model.tar.gz", "no archive");
  aws_.add_job("bad", with_model("s3://bucket/bad/output/model.tar.gz"));
  refused({"report", "bad"}, "has left no metrics.jsonl");
  aws_.add_job("young", json::object());
  refused({"report", "young"}, "wait for its end, or give it checkpoint_s3_uri");
  refused({"report", "nowhere"}, "nowhere is not there, and as a SageMaker job: ");
  // A link in an archive does not lead out of it.
  std::filesystem::create_directories(here_ / "linked");
  std::ofstream(here_ / "secret") << "{\"loss\": 1, \"step\": 1}\n";
  std::filesystem::create_symlink(here_ / "secret", here_ / "linked/metrics.jsonl");
  ASSERT_EQ(
      test::run_program({"tar", "-czf", here_ / "l.tar.gz", "-C", here_ / "linked", "."}).status,
      0);
  aws_.put_object("bucket/link/output/model.tar.gz", text_in(here_ / "l.tar.gz"));
  aws_.add_job("link", with_model("s3://bucket/link/output/model.tar.gz"));
  refused({"report", "link"}, "has left no metrics.jsonl");
}

class ShoalStudyOfJobs : public ShoalJobOutput {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(here_ / "code");
    std::ofstream(here_ / "code/run.json") << R"({"model_type": "gpt2"})";
    std::ofstream(here_ / "job.json")
        << json{{"role", "arn:aws:iam::111122223333:role/R"},
                {"image_uri", "shoal:0.1.0-cuda12"},
                {"instance_type", "ml.p4d.24xlarge"},
                {"instance_count", 1},
                {"source_dir", "code"},
                {"entry_point", "run.json"},
                {"inputs", {{"train", "s3://bucket/train"}, {"model", "s3://bucket/model"}}},
                {"distribution", {{"mpi", {{"enabled", true}}}}}};
    std::ofstream(here_ / "p4d.json")
        << json{{"job", "job.json"},    {"nodes", {1, 2}},
                {"ranks_per_node", 8},  {"workers", {2}},
                {"batches", {4}},       {"examples", 256},
                {"price_per_hour", 36}, {"options", {{"bf16", true}}}};
  }
};

TEST_F(ShoalStudyOfJobs, CreatesAJobForEachRun) {
  const ProgramResult plan = shoal({"study", "p4d.json", "--dry-run", "--json"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  const json requests = json::parse(plan.out);
  EXPECT_EQ(requests[1]["request"]["ResourceConfig"]["InstanceCount"], 2);
  EXPECT_EQ(requests[1]["request"]["HyperParameters"]["max_steps"], "4");
  EXPECT_THAT(shoal({"study", "p4d.json", "--dry-run"}).out,
              HasSubstr("ranks16-workers2-batch4-native: 2 instances with "));
  EXPECT_EQ(aws_.created(), 0);
  aws_.set_output(archive(run_of(256)));
  const ProgramResult result = shoal({"study", "p4d.json", "--interval", "0.01", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(aws_.created(), 2);
  EXPECT_THAT(result.err, HasSubstr("waiting for the job r16-w2-b4-native-p4d-"));
  const json study = json::parse(result.out);
  EXPECT_EQ(study["runs"][1]["node_seconds"], 100);
  EXPECT_EQ(study["runs"][1]["cost"], 1.0);
  EXPECT_NEAR(study["runs"][0]["samples_per_second"], 64, 1e-9);
  EXPECT_NEAR(study["runs"][0]["loader_stall_share"], 0.25, 1e-9);
  // A study that is lost after its job was created finds the job.
  std::filesystem::remove(here_ / "p4d/runs/ranks16-workers2-batch4-native/result.json");
  ASSERT_EQ(shoal({"study", "p4d.json", "--interval", "0.01"}).status, 0);
  EXPECT_EQ(aws_.created(), 2);
}

TEST_F(ShoalStudyOfJobs, AFailedJobIsNamedAndTriedAgain) {
  std::filesystem::create_directories(here_ / "p4d/runs/ranks8-workers2-batch4-native");
  std::ofstream(here_ / "p4d/runs/ranks8-workers2-batch4-native/job.json") << R"({"job": "began"})";
  aws_.add_job("began", {{"FailureReason", "AlgorithmError: no space"}},
               {{"InProgress", "Training"}, {"Failed", "Failed"}});
  const ProgramResult failed = shoal({"study", "p4d.json", "--interval", "0.01"});
  EXPECT_EQ(failed.status, 1);
  EXPECT_THAT(failed.err,
              HasSubstr("the run ranks8-workers2-batch4-native failed: the job began is "
                        "Failed: AlgorithmError: no space; the same command starts it "
                        "again\n"));
  EXPECT_EQ(aws_.created(), 0);
  aws_.set_output(archive(run_of(256)));
  EXPECT_EQ(shoal({"study", "p4d.json", "--interval", "0.01"}).status, 0);
  EXPECT_EQ(aws_.created(), 2);
}

}  // namespace
}  // namespace shoal
