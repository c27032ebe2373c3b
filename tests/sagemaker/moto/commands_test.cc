// `shoal submit`, `shoal jobs` and `shoal train` with s3:// paths: the real program against moto.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/shoal_fixture.h"
#include "sagemaker/moto/moto.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/sagemaker/rest/s3_source.h"
#include "shoal/sagemaker/rest/session.h"

namespace shoal {
namespace {

using nlohmann::json;

class MotoCommands : public Shoal {
 protected:
  void SetUp() override {
    SHOAL_SKIP_WITHOUT_MOTO();
    std::filesystem::create_directories(mine_ / "code");
    std::ofstream(mine_ / "code/run.json") << R"({"max_steps": 5})";
  }
  std::string job_file(const std::string& name) {
    const std::string path = mine_ / (name + ".json");
    std::ofstream(path) << json{
        {"role", "arn:aws:iam::123456789012:role/R"},
        {"image_uri", "shoal:0.1.0-cuda12"},
        {"instance_type", "ml.g5.xlarge"},
        {"instance_count", 1},
        {"job_name", name},
        {"source_dir", "code"},
        {"entry_point", "run.json"},
        {"inputs", {{"train", "s3://bucket/train"}, {"model", "s3://bucket/model"}}},
        {"hyperparameters", {{"learning_rate", 3e-5}}}};
    return path;
  }
  static json json_of(const ProgramResult& result) {
    EXPECT_EQ(result.status, 0) << result.err;
    return json::parse(result.out, nullptr, false);
  }
  static sagemaker::S3 s3() { return sagemaker::Session(sagemaker::process_environment()).s3(); }
  // Each test needs its own name, because moto keeps the objects of earlier tests.
  static std::string code_of(const std::string& job) {
    return "s3://sagemaker-us-east-1-123456789012/" + job + "/source/sourcedir.tar.gz";
  }
};

TEST_F(MotoCommands, SubmitUploadsTheCodeAndCreatesTheJob) {
  const std::string file = job_file(test::kMotoJob);
  const json request = json_of(shoal({"submit", file, "--dry-run", "--json"}));
  const ProgramResult result = shoal({"submit", file, "--logs", "--interval", "0.05"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("code: " + code_of(test::kMotoJob)));
  EXPECT_THAT(result.out, HasSubstr("job: moto-job in us-east-1 (arn:aws:sagemaker:us-east-1:"));
  EXPECT_THAT(result.out, HasSubstr("algo-1 | line 24\n"));
  EXPECT_THAT(result.out, HasSubstr("moto-job: Completed"));
  const auto code = sagemaker::S3Reader(s3()).open(code_of(test::kMotoJob));
  EXPECT_TRUE(read_all(*code).starts_with("\x1f\x8b")) << "gzip";
  // The created job equals what a dry run prints.
  const json job = json_of(shoal({"jobs", "describe", test::kMotoJob, "--json"}));
  for (const char* key : {"TrainingJobName", "RoleArn", "HyperParameters", "ResourceConfig",
                          "StoppingCondition", "OutputDataConfig"})
    EXPECT_EQ(job.value(key, json()), request.at(key)) << key;
}

TEST_F(MotoCommands, SubmitUploadsLocalDataOnce) {
  std::filesystem::create_directories(mine_ / "data/validation");
  std::ofstream(mine_ / "data/validation/rows.csv") << "text,label\nfish,good\n";
  std::ofstream(mine_ / "data/validation/large.txt") << std::string(17 << 20, 'x');
  const auto upload = [&](const std::string& name) {
    return shoal({"submit", job_file(name), "--upload", mine_ / "data"});
  };
  const ProgramResult first = upload("upload-job");
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("data: 2 files, 17.0 MiB\n"));
  EXPECT_THAT(upload("upload-again").out, HasSubstr("data: 2 files, 17.0 MiB; already there: 2\n"));
}

TEST_F(MotoCommands, JobsAreListedDescribedAndRead) {
  ASSERT_EQ(shoal({"submit", job_file("listed-job")}).status, 0);
  const ProgramResult list = shoal({"jobs", "list", "--name-contains", "listed"});
  EXPECT_THAT(list.out, ::testing::ContainsRegex("listed-job +Completed"));
  EXPECT_THAT(shoal({"jobs", "describe", "listed-job"}).out,
              HasSubstr("instances         1 x ml.g5.xlarge"));
  EXPECT_THAT(shoal({"jobs", "attach", "listed-job", "--interval", "0.05"}).out,
              HasSubstr("listed-job: Completed"));
  const ProgramResult log = shoal({"jobs", "logs", test::kMotoJob});
  EXPECT_EQ(log.status, 0) << log.err;
  EXPECT_THAT(log.out, ::testing::StartsWith("algo-1 | line 0\nalgo-1 | line 1\n"));
  EXPECT_EQ(std::count(log.out.begin(), log.out.end(), '\n'), 25);
  expect_refused(shoal({"jobs", "describe", "no-such-job"}), "no-such-job");
}

TEST_F(MotoCommands, ReportReadsAJobsOutput) {
  ASSERT_EQ(shoal({"submit", job_file("reported-job")}).status, 0);
  const json job = json_of(shoal({"jobs", "describe", "reported-job", "--json"}));
  std::ofstream(mine_ / "code/metrics.jsonl") << R"({"step": 1, "loss": 2.5})" << "\n";
  const std::string archive = mine_ / "model.tar.gz";
  ASSERT_EQ(test::run_program({"tar", "-czf", archive, "-C", mine_ / "code", "."}).status, 0);
  s3().put(sagemaker::parse_s3_name(job["ModelArtifacts"]["S3ModelArtifacts"].get<std::string>()),
           read_text_file(archive));
  EXPECT_EQ(json_of(shoal({"report", "reported-job", "--json"})).at(0)["loss"], 2.5);
}

TEST_F(MotoCommands, TrainsOnShardsInS3) {
  const sagemaker::S3 far = s3();
  std::filesystem::create_directories(mine_ / "shards");
  std::istringstream lines(sentences(200));
  std::string line;
  for (int shard = 0; shard < 4; ++shard) {
    std::string text;
    for (int i = 0; i < 40 && std::getline(lines, line); ++i) text += line + "\n";
    std::ofstream(mine_ / fmt::format("shards/{}.txt", shard)) << text;
    far.put({test::kMotoBucket, fmt::format("data/{}.txt", shard)}, text);
  }
  const auto words = [&](const std::string& from, const std::string& to) {
    return train_words({"--streaming", "true", "--shuffle_buffer_size", "20", "--max_steps", "3",
                        "--train_file", from, "--output_dir", mine_ / to});
  };
  const ProgramResult near = shoal(words(mine_ / "shards", "local"));
  ASSERT_EQ(near.status, 0) << near.err;
  const ProgramResult result = shoal(words("s3://shoal-test/data/", "s3"));
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(read_text_file(mine_ / "s3/model.safetensors") ==
              read_text_file(mine_ / "local/model.safetensors"));
}

TEST_F(MotoCommands, WrongSecretsAreRefusedInOneLine) {
  const std::string secret = std::getenv("AWS_SECRET_ACCESS_KEY");
  const auto refused = [&](const std::vector<std::string>& words, const std::string& why) {
    ProgramOptions wrong;
    wrong.environment = {"AWS_SECRET_ACCESS_KEY=not" + secret};
    const ProgramResult result = shoal(words, wrong);
    EXPECT_EQ(result.status, 4) << words[0];
    expect_refused(result, why);
    EXPECT_THAT(result.err, HasSubstr("check the credentials (environment)"));
    EXPECT_THAT(result.out + result.err, ::testing::Not(HasSubstr(secret)));
  };
  refused({"jobs", "list"}, "SageMaker ListTrainingJobs");
  refused({"jobs", "describe", test::kMotoJob}, "SageMaker DescribeTrainingJob");
  refused({"jobs", "logs", test::kMotoJob}, "CloudWatch Logs DescribeLogStreams");
  refused({"submit", job_file("refused-job")}, "SignatureDoesNotMatch");
  refused(train_words({"--streaming", "true", "--train_file", "s3://shoal-test/data/"}),
          "S3 ListObjectsV2: SignatureDoesNotMatch");
  const ProgramResult list = shoal({"jobs", "list", "--name-contains", "refused", "--json"});
  EXPECT_EQ(json_of(list).size(), 0U);
}

}  // namespace
}  // namespace shoal
