// Errors in a job file: all of them are reported at once, each with its JSON path.
#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"
#include "support/source_tree.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/job/job.h"

namespace shoal::sagemaker {
namespace {

using ::testing::HasSubstr;

Json right() {
  return {{"role", "arn:aws:iam::111122223333:role/R"},
          {"region", "us-east-1"},
          {"image_uri", "111122223333.dkr.ecr.us-east-1.amazonaws.com/shoal:0.1.0-cuda12"},
          {"instance_type", "ml.p4d.24xlarge"},
          {"instance_count", 2}};
}

std::string problems_of(const Json& job) {
  try {
    make_training_job(job, {.region = {}, .now = {}});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

// The problems of a valid job with these changes.
std::string changed(const Json& changes) {
  Json job = right();
  for (const auto& [name, value] : changes.items()) job[name] = value;
  return problems_of(job);
}

struct Case {
  const char* changes;
  const char* says;
};

class Refused : public ::testing::TestWithParam<Case> {};

TEST_P(Refused, InOneLineWithItsPath) {
  const std::string said = changed(Json::parse(GetParam().changes));
  EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  EXPECT_THAT(said, HasSubstr(GetParam().says));
  EXPECT_TRUE(said.starts_with('/')) << said;
}

INSTANTIATE_TEST_SUITE_P(
    Limits, Refused,
    ::testing::Values(
        Case{R"({"instance_typ": 1})",
             "/instance_typ: there is no such key; did you mean instance_type?"},
        Case{R"({"instance_type": "ml.p4d.24xlarg"})", "did you mean ml.p4d.24xlarge?"},
        Case{R"({"instance_type": "local"})", "run `shoal train` instead"},
        Case{R"({"instance_count": 0})", "/instance_count: is 0; 1 to 10000"},
        Case{R"({"instance_count": "2"})", "/instance_count: is \"2\", but an integer is needed"},
        Case{R"({"job_name": "a_b"})", "/job_name: \"a_b\" does not look like"},
        Case{R"({"job_name": "-a"})", "/job_name"},
        Case{R"({"base_job_name": "ü"})", "/base_job_name"},
        Case{R"({"role": "R"})", "give the role's ARN"},
        Case{R"({"role": "arn:aws:iam::12:role/R-long-enough"})", "/role: "},
        Case{R"({"region": "us_east"})", "/region: "},
        Case{R"({"max_run": 2419201})", "/max_run: is 2419201; 1 to 2419200"},
        Case{R"({"max_wait": 90000})", "/max_wait: is for spot instances"},
        Case{R"({"use_spot_instances": true})", "/max_wait: is needed with use_spot_instances"},
        Case{R"({"use_spot_instances": true, "max_wait": 100, "max_run": 101})",
             "/max_wait: is 100; it must be at least max_run, 101"},
        Case{
            R"({"use_spot_instances": true, "max_wait": 86400, "keep_alive_period_in_seconds": 60})",
            "spot instances cannot be kept alive"},
        Case{R"({"keep_alive_period_in_seconds": 21601})", "0 to 21600"},
        Case{R"({"checkpoint_local_path": "/opt/ml/checkpoints"})",
             "no effect without checkpoint_s3_uri"},
        Case{R"({"output_path": "bucket/x"})",
             "/output_path: \"bucket/x\" does not look like s3://"},
        Case{R"({"inputs": {"a b": "s3://x/y"}})", "/inputs/a b: "},
        Case{R"({"inputs": {"a": "file:///x"}})", "upload it"},
        Case{R"({"inputs": {"a": {"s3_data": "s3://x", "input_mod": "File"}}})",
             "did you mean input_mode?"},
        Case{R"({"inputs": {"a": {"s3_data": "s3://x", "distribution": "Sharded"}}})",
             "did you mean ShardedByS3Key?"},
        Case{R"({"environment": {"1A": "x"}})", "/environment/1A: "},
        Case{R"({"environment": {"A": 1}})",
             "/environment/A: is a number (not shown), but a text is needed"},
        Case{R"({"tags": {"aws:x": "y"}})", "Amazon's own"},
        Case{R"({"tags": [{"Key": "a", "Value": "b"}, {"Key": "a", "Value": "c"}]})",
             "stands twice"},
        Case{R"({"tags": {"a": "b;c"}})", "/tags/a: letters, digits, spaces and _ . :"},
        Case{R"({"entry_point": "a.json", "git_config": {"repo": "http://x/y", "token": "t"}})",
             "/git_config/token: is carried by https:// only"},
        Case{R"({"entry_point": "a", "git_config": {"repo": "ssh://me:pw@x/y"}})",
             "/git_config/repo: has a password in it"},
        Case{R"({"output_path": "https://me:pw@bucket/x"})",
             "/output_path: has a password in its URL"},
        Case{R"({"environment": {"AWS_SECRET_ACCESS_KEY": "x"}})",
             "/environment/AWS_SECRET_ACCESS_KEY: is a key of yours"},
        Case{R"({"compiler_config": {"debug": "yes"}})",
             "/compiler_config/debug: is \"yes\", but true or false is needed"},
        Case{R"({"instance_placement_config": {"a": 1}})",
             "/instance_placement_config/a: there is no such key"},
        Case{R"({"instance_placement_config": {"PlacementSpecifications": [{}]}})",
             "/instance_placement_config/PlacementSpecifications/0/InstanceCount: is needed"},
        Case{R"({"instance_placement_config": {"PlacementSpecifications": 3}})",
             "/instance_placement_config/PlacementSpecifications: is not a list"},
        Case{R"({"subnets": ["subnet-1"]})", "/security_group_ids: is needed"},
        Case{R"({"metric_definitions": [{"Name": "x"}]})",
             "/metric_definitions/0/Regex: is needed"},
        Case{R"({"max_retry_attempts": 31})", "1 to 30"},
        Case{R"({"source_dir": "x"})", "/source_dir: needs entry_point"},
        Case{R"({"entry_point": "a", "git_config": {"repo": "x.git"}})",
             "/git_config/repo: begins with none"},
        Case{R"({"entry_point": "a", "git_config": {"repo": "https://me:pw@x"}})",
             "name or password"},
        Case{
            R"({"hyperparameters": {"sagemaker_mpi_enabled": true}, "distribution": {"mpi": {"enabled": true}}})",
            "/hyperparameters/sagemaker_mpi_enabled: is made of other keys"},
        Case{R"({"hyperparameters": [1]})", "/hyperparameters: is [1], but an object is needed"},
        Case{R"({"rules": []})", "/rules: "},
        Case{R"({"profiler_config": {"system_monitor_interval_millis": 300}})", "100, 200, 500"}));

INSTANTIATE_TEST_SUITE_P(
    Strategies, Refused,
    ::testing::Values(
        Case{R"({"distribution": {"smdistribute": {}}})", "did you mean smdistributed?"},
        Case{
            R"({"distribution": {"smdistributed": {"dataparallel": {"enabled": true}, "modelparallel": {"enabled": false}}}})",
            "takes one of dataparallel and modelparallel"},
        Case{
            R"({"distribution": {"smdistributed": {"modelparallel": {"enabled": true, "parameters": {"partitions": 2}}}}})",
            "needs \"mpi\": {\"enabled\": true}"},
        Case{
            R"({"distribution": {"mpi": {"enabled": true}, "smdistributed": {"modelparallel": {"enabled": true, "parameters": {"partition": 2}}}}})",
            "/distribution/smdistributed/modelparallel/parameters/partition: there is no such key; "
            "did you mean partitions?"},
        Case{
            R"({"distribution": {"mpi": {"enabled": true}, "smdistributed": {"modelparallel": {"enabled": true, "parameters": {"partitions": 3}}}}})",
            "3 stages x tensor_parallel_degree 1 = 3 does not divide the 16 ranks"},
        Case{
            R"({"distribution": {"mpi": {"enabled": true}, "smdistributed": {"modelparallel": {"enabled": true, "parameters": {"tensor_parallel_degree": 16}}}}})",
            "tensor_parallel_degree: is 16, but an instance has 8 ranks"},
        Case{
            R"({"distribution": {"mpi": {"enabled": true, "processes_per_host": 16}, "smdistributed": {"modelparallel": {"enabled": true, "parameters": {"tensor_parallel_degree": 16}}}}})",
            "tensor_parallel_degree: is 16, but an instance has 8 GPUs"},
        Case{
            R"({"distribution": {"mpi": {"enabled": true, "processes_per_host": 4}, "smdistributed": {"modelparallel": {"enabled": true, "parameters": {"sharded_data_parallel_degree": 3}}}}})",
            "sharded_data_parallel_degree: is 3, which does not divide the 8 replicas"},
        Case{
            R"({"distribution": {"mpi": {"enabled": true}, "smdistributed": {"modelparallel": {"enabled": true, "parameters": {"partitions": 2, "default_partition": 2}}}}})",
            "default_partition: is 2; it must be below the number of partitions, 2"},
        Case{
            R"({"distribution": {"mpi": {"enabled": true}, "smdistributed": {"modelparallel": {"enabled": true, "parameters": {"memory_weight": 1.5}}}}})",
            "memory_weight: is not a number from 0 to 1"},
        Case{
            R"({"distribution": {"mpi": {"enabled": true}, "smdistributed": {"modelparallel": {"enabled": true, "parameters": {"pipeline": "simpel"}}}}})",
            "did you mean simple?"},
        Case{
            R"({"distribution": {"mpi": {"enabled": true}, "smdistributed": {"modelparallel": {"enabled": true, "parameters": {"auto_partition": false}}}}})",
            "default_partition is needed"},
        Case{R"({"distribution": {"pytorchxla": {"enabled": true}}})", "needs compiler_config"},
        Case{R"({"distribution": {"parameter_server": {"enabled": true}}})", "is of TensorFlow"},
        Case{R"({"instance_type": "ml.p3.16xlarge", "image_uri": "me/shoal:1-cuda13"})",
             "V100 GPUs (compute capability 7.0), which CUDA 13 dropped; use Shoal's cuda12 image"},
        Case{R"({"instance_type": "ml.p3.16xlarge", "image_uri": "me/shoal:1-cuda13@sha256:12"})",
             "which CUDA 13 dropped"},
        Case{
            R"({"instance_type": "ml.p3.2xlarge", "image_uri": "me/shoal:1-cuda12", "hyperparameters": {"bf16": true}})",
            "V100 GPUs (compute capability 7.0), which have no bf16; set fp16 in hyperparameters"},
        Case{R"({"instance_type": "ml.p2.xlarge"})",
             "has K80 GPUs (compute capability 3.7), which no CUDA"},
        Case{R"({"instance_type": "ml.trn1.32xlarge"})",
             "Trainium, for which Shoal has no kernels"},
        Case{
            R"({"image_uri": null, "transformers_version": "4.26.0", "pytorch_version": "1.13.1", "instance_type": "ml.g5.xlarge", "distribution": {"smdistributed": {"dataparallel": {"enabled": true}}}})",
            "Amazon's library does not run on ml.g5.xlarge"},
        Case{R"({"image_uri": null, "transformers_version": "4.26", "pytorch_version": "1.13.1"})",
             "give both in full, or both short"},
        Case{
            R"({"image_uri": null, "transformers_version": "4.26.0", "pytorch_version": "1.13.1", "instance_type": "ml.m5.xlarge"})",
            "has no GPU"},
        Case{R"({"image_uri": null})", "/image_uri: is needed"}));

TEST(JobFile, HasAllItsProblemsAtOnce) {
  const std::string said = problems_of(Json::parse(R"({
    "role": "R", "region": "us-east-1", "image_uri": "me/shoal:1-cuda13", "instance_type": "ml.p3.2xlarge",
    "instance_count": -1, "max_run": 0, "hyperparamters": {},
    "distribution": {"mpi": {"enabeld": true}}, "inputs": {"a": "x"}})"));
  EXPECT_EQ(std::ranges::count(said, '\n') + 1, 7) << said;
  for (const char* path : {"/role: ", "/instance_type: ", "/instance_count: ", "/max_run: ",
                           "/hyperparamters: ", "/distribution/mpi/enabeld: ", "/inputs/a: "})
    EXPECT_THAT(said, HasSubstr(path));
}

TEST(JobFile, MayHaveComments) { EXPECT_EQ(changed({{"_why", "because"}}), "accepted"); }

TEST(JobFile, LimitsValuesOfHyperparameters) {
  // Quotes and the characters of JSON escapes count.
  EXPECT_EQ(changed({{"hyperparameters", {{"x", std::string(2498, 'a')}}}}), "accepted");
  EXPECT_THAT(changed({{"hyperparameters", {{"x", std::string(2499, 'a')}}}}),
              HasSubstr("/hyperparameters/x: has 2501 characters"));
  Json many = Json::object();
  for (int i = 0; i < 101; ++i) many["x" + std::to_string(i)] = i;
  EXPECT_THAT(changed({{"hyperparameters", many}}), HasSubstr("/hyperparameters: are 101"));
}

TEST(JobFile, CountsCharactersAndNotBytes) {
  std::string text;
  for (int i = 0; i < 512; ++i) text += "\xc3\xbc";
  EXPECT_EQ(changed({{"environment", {{"A", text}}}}), "accepted");
  EXPECT_THAT(changed({{"environment", {{"A", text + "x"}}}}), HasSubstr("has 513 characters"));
}

TEST(JobFile, NotesUnusualSettings) {
  Json job = right();
  job["use_spot_instances"] = true;
  job["max_wait"] = 86400;
  job["image_uri"] = "me/shoal:1-cpu";
  const TrainingJob made = make_training_job(job, {.region = {}, .now = {}});
  ASSERT_EQ(made.notices.size(), 2U);
  EXPECT_THAT(made.notices[0], HasSubstr("uses none"));
  EXPECT_THAT(made.notices[1], HasSubstr("begins anew"));
}

TEST(JobFile, SaysThatRanksReadTheSameFiles) {
  const auto notices = [](int hosts, const std::string& image) {
    Json job = right();
    job["inputs"] = {{"train", {{"s3_data", "s3://x/y"}, {"distribution", "ShardedByS3Key"}}}};
    job["instance_count"] = hosts;
    job["image_uri"] = image;
    return make_training_job(job, {.region = {}, .now = {}}).notices;
  };
  ASSERT_EQ(notices(2, "me/shoal:1-cuda12").size(), 1U);
  EXPECT_THAT(
      notices(2, "me/shoal:1-cuda12")[0],
      ::testing::AllOf(
          HasSubstr("/inputs/train/distribution: ShardedByS3Key gives each host other files"),
          HasSubstr("shard_by_rank")));
  EXPECT_TRUE(notices(1, "me/shoal:1-cuda12").empty());
  EXPECT_TRUE(notices(2, "me/other:1").empty());
}

TEST(JobFile, SaysWhatShoalsKernelsAreCompiledFor) {
  const auto notices = [](const char* type, const char* image) {
    Json job = right();
    job["instance_type"] = type;
    job["image_uri"] = image;
    return make_training_job(job, {.region = {}, .now = {}}).notices;
  };
  for (const char* type : {"ml.p3.16xlarge", "ml.g4dn.xlarge", "ml.p4d.24xlarge"})
    EXPECT_TRUE(notices(type, "me/shoal:1-cuda12").empty()) << type;
  ASSERT_EQ(notices("ml.g4dn.xlarge", "me/shoal:1-cuda13").size(), 1U);
  EXPECT_THAT(notices("ml.g4dn.xlarge", "me/shoal:1-cuda13")[0],
              HasSubstr("T4 GPUs (compute capability 7.5); the kernels of Shoal's cuda13 image are "
                        "compiled for 8.0 to 9.0"));
  ASSERT_EQ(notices("ml.p6-b200.48xlarge", "me/shoal:1-cuda12").size(), 1U);
  EXPECT_THAT(notices("ml.p6-b200.48xlarge", "me/shoal:1-cuda12")[0],
              HasSubstr("B200 GPUs (compute capability 10.0); the kernels of Shoal's cuda12 image "
                        "are compiled for 7.0 to 9.0"));
}

TEST(JobFile, Bf16IsNoMatterOnCpus) {
  const auto make = [](const Json& hyperparameters) {
    Json job = right();
    job["instance_type"] = "ml.p3.2xlarge";
    job["image_uri"] = "me/shoal:1-cuda12";
    job["hyperparameters"] = hyperparameters;
    return make_training_job(job, {.region = {}, .now = {}});
  };
  for (const Json& on : {Json(true), Json("True"), Json("1")}) {
    EXPECT_THROW(make({{"bf16", on}}), Error) << on;
    EXPECT_NO_THROW(make({{"bf16", on}, {"use_cpu", true}})) << on;
  }
}

std::vector<std::string> notices_of(const Json& changes) {
  Json job = right();
  for (const auto& [name, value] : changes.items()) job[name] = value;
  return make_training_job(job, {.region = {}, .now = {}}).notices;
}

TEST(JobFile, ReportsSettingsThatShoalsImageCannotRun) {
  EXPECT_THAT(notices_of({{"entry_point", "train.sh"}}),
              ::testing::ElementsAre(HasSubstr("entry_point is train.sh, but Shoal's image runs")));
  EXPECT_THAT(
      notices_of({{"entry_point", "train.py"}}),
      ::testing::ElementsAre(HasSubstr("shoal:0.1.0-cuda12 has no Python; use Shoal's image "
                                       "of the target pytorch")));
  const Json sharded = {{"train", {{"s3_data", "s3://x/y"}, {"distribution", "ShardedByS3Key"}}}};
  EXPECT_TRUE(notices_of({{"entry_point", "train.py"},
                          {"image_uri", "me/shoal-pytorch:0.1.0-cuda12"},
                          {"inputs", sharded}})
                  .empty());
  EXPECT_TRUE(notices_of({{"entry_point", "run.json"}}).empty());
  EXPECT_TRUE(notices_of({{"entry_point", "train.py"}, {"image_uri", "me/other:1"}}).empty());
}

// CheckpointConfig tells the platform the path, but nothing tells the container.
TEST(JobFile, NotesThatTheCheckpointPathIsSetTwice) {
  Json job = {{"checkpoint_s3_uri", "s3://b/c"}, {"checkpoint_local_path", "/opt/ml/here"}};
  EXPECT_THAT(notices_of(job), ::testing::ElementsAre(HasSubstr("output_dir /opt/ml/here")));
  job["hyperparameters"] = {{"output_dir", "/opt/ml/here"}};
  EXPECT_TRUE(notices_of(job).empty());
  EXPECT_TRUE(notices_of({{"checkpoint_s3_uri", "s3://b/c"},
                          {"checkpoint_local_path", "/opt/ml/checkpoints/"}})
                  .empty());
}

// The matcher of patterns recurses for each character.
TEST(JobFile, MayBeLong) {
  const std::string text(1 << 20, 'a');
  for (const char* name :
       {"role", "region", "job_name", "base_job_name", "image_uri", "output_path", "output_kms_key",
        "volume_kms_key", "training_plan", "checkpoint_s3_uri", "model_channel_name",
        "code_location", "training_repository_credentials_provider_arn"}) {
    EXPECT_THAT(changed({{name, text}}), HasSubstr(fmt::format("/{}: ", name)));
    EXPECT_THAT(changed({{name, "arn:" + text}}), HasSubstr(fmt::format("/{}: ", name)));
  }
  for (const Json& changes :
       {Json{{"inputs", text}}, Json{{"inputs", {{text, "s3://a/b"}}}},
        Json{{"environment", {{text, "x"}}}}, Json{{"tags", {{text, "x"}}}},
        Json{{"subnets", {text}}}, Json{{"experiment_config", {{"RunName", text}}}}})
    EXPECT_THAT(changed(changes), HasSubstr("characters"));
}

TEST(JobFile, NamesOneRegion) {
  const auto problems = [](const char* asked) {
    try {
      make_training_job(right(), {.region = asked, .is_region_asked = true, .now = {}});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(problems("eu-west-1"),
              HasSubstr("/region: is us-east-1, but --region says eu-west-1"));
  EXPECT_EQ(problems("us-east-1"), "accepted");
  EXPECT_EQ(changed({{"region", "eusc-de-east-1"}}), "accepted");
}

// A key of another bucket may not be usable for this one.
TEST(JobFile, EncryptsCodeWithTheKeyOfItsBucket) {
  Json job = right();
  job.update({{"entry_point", "run.json"},
              {"output_path", "s3://results/x"},
              {"output_kms_key", "a-key"},
              {"code_location", "s3://results/code/"}});
  const JobContext context{.region = {}, .now = {}};
  TrainingJob made = make_training_job(job, context);
  EXPECT_EQ(made.code->kms_key, "a-key");
  EXPECT_EQ(made.code->upload_to, "s3://results/code/" + made.name + "/source/sourcedir.tar.gz");
  job["code_location"] = "s3://elsewhere";
  made = make_training_job(job, context);
  EXPECT_EQ(made.code->kms_key, "");
  EXPECT_EQ(made.code->upload_to, "s3://elsewhere/" + made.name + "/source/sourcedir.tar.gz");
}

TEST(JobFile, TakesRegionFromOutsideAndAccountFromTheRole) {
  Json job = right();
  job.erase("region");
  EXPECT_THAT(problems_of(job), HasSubstr("/region: is needed, here or as AWS_REGION"));
  const TrainingJob made = make_training_job(job, {.region = "eu-west-3", .now = {}});
  EXPECT_EQ(made.request["OutputDataConfig"]["S3OutputPath"],
            "s3://sagemaker-eu-west-3-111122223333/");
}

TEST(JobFile, MayHoldNoKeyTwice) {
  const testing::TemporaryDirectory root;
  std::ofstream(root / "job.json") << R"({"role": "a", "role": "b"})";
  EXPECT_THROW(read_job_file(root / "job.json"), Error);
  EXPECT_THROW(read_job_file(root / "nothing.json"), Error);
}

TEST(JobFile, HostileFilesAreRefusedInLinearTime) {
  const testing::TemporaryDirectory root;
  const auto problem = [&](const Json& job) {
    const std::string text = job.dump();
    std::ofstream(root / "job.json") << text;
    return testing::within_budget(text.size(), text.substr(0, 40), [&] {
      (void)make_training_job(read_job_file(root / "job.json"), {.region = "eu-west-3", .now = {}});
    });
  };
  std::string many = "{";
  for (int i = 0; i < 50'000; ++i) many += fmt::format("\"k{}\":0,", i);
  many.back() = '}';
  EXPECT_THAT(problem(Json::parse(many)), HasSubstr("it has 50000 entries; at most 1000 are read"));
  EXPECT_THAT(problem({{"hyperparameters", Json::parse(many)}}),
              HasSubstr("/hyperparameters has 50000 entries"));
  Json some = Json::object();
  for (int i = 0; i < 1'000; ++i) some[std::string(500, 'x') + std::to_string(i)] = i;
  EXPECT_THAT(problem(some), HasSubstr("there is no such key"));
  EXPECT_THAT(problem({{"environment", some}}), HasSubstr("/environment"));
  EXPECT_THAT(problem({{"hyperparameters", some}}), HasSubstr("at most 100"));
}

TEST(JobFile, ItsLongValuesAreShownInPart) {
  const std::string word(20'000, 'x');
  for (const char* field : {"instance_type", "entry_point", "source_dir", "image_uri", "region",
                            "input_mode", "role", "instance_count", "checkpoint_s3_uri"}) {
    const std::string said = changed({{field, word}});
    EXPECT_LT(said.size(), 2000U) << field << said.substr(0, 200);
  }
  EXPECT_LT(changed({{word, 1}}).size(), 2000U);
  EXPECT_LT(changed({{"inputs", {{word, "s3://b/c"}}}}).size(), 2000U);
}

// Values of a wrong type or under a wrong name may still be passwords.
TEST(JobFile, ItsSecretsStandInNoMessage) {
  const Json wrong = {"s3cret", 5318008, {"s3cret"}, {{"s3cret", "s3cret"}}, true};
  for (const Json& value : wrong)
    for (const char* key : {"repo", "branch", "commit", "username", "password", "token"}) {
      const std::string said = changed(
          {{"entry_point", "a"}, {"git_config", {{key, value}, {"2FA_enabled", "s3cret"}}}});
      EXPECT_THAT(said, HasSubstr("/git_config/2FA_enabled: is a text (not shown)"));
      EXPECT_THAT(said, ::testing::Not(::testing::AnyOf(HasSubstr("s3cret"), HasSubstr("5318008"))))
          << key;
    }
  for (const Json& value : wrong) {
    if (!value.is_object()) {
      EXPECT_THAT(changed({{"environment", value}}), HasSubstr("/environment: is"));
      EXPECT_THAT(changed({{"entry_point", "a"}, {"git_config", value}}),
                  HasSubstr("/git_config: is"));
    }
    for (const std::string& said :
         {changed({{"environment", value}}), changed({{"environment", {{"A", value}}}}),
          changed({{"entry_point", "a"}, {"git_config", value}})})
      EXPECT_THAT(
          said, ::testing::Not(::testing::AnyOf(HasSubstr(": is \"s3cret"), HasSubstr("[\"s3cret"),
                                                HasSubstr("5318008"))));
  }
  for (const Json& value : wrong) {
    if (value.is_string()) continue;
    const Json tag = {{"Key", "api-key"}, {"Value", value}};
    const std::string said = changed({{"tags", Json::array({tag})}});
    EXPECT_THAT(said, HasSubstr("/tags/0/Value: is"));
    EXPECT_THAT(said, ::testing::Not(::testing::AnyOf(HasSubstr("s3cret"), HasSubstr("5318008"))));
  }
  EXPECT_THAT(changed({{"output_path", "s3://key:s3cret@bucket/x"}}),
              ::testing::Not(HasSubstr("s3cret")));
  for (const Json& job :
       {Json{{"hyperparameters", {"--api-key", "s3cret"}}}, Json{{"tags", {{"api-key", 5318008}}}},
        Json{{"tags", {{"DB_PWD", {"s3cret"}}}}}})
    EXPECT_THAT(changed(job),
                ::testing::AllOf(HasSubstr("(not shown)"), ::testing::Not(HasSubstr("s3cret")),
                                 ::testing::Not(HasSubstr("5318008"))))
        << job;
  const testing::TemporaryDirectory root;
  std::ofstream(root / "job.json") << R"({"git_config": {"password": "s3cret)";
  try {
    read_job_file(root / "job.json");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                ::testing::AllOf(HasSubstr("line 1, column"), ::testing::Not(HasSubstr("s3cret"))));
  }
}

TEST(JobFile, AcceptsUltraServerPlacements) {
  Json job = right();
  job["instance_placement_config"] = {
      {"EnableMultipleJobs", true},
      {"PlacementSpecifications", {{{"UltraServerId", "us-1"}, {"InstanceCount", 2}}}}};
  EXPECT_EQ(make_training_job(job, {.region = {}, .now = {}})
                .request["ResourceConfig"]["InstancePlacementConfig"],
            job["instance_placement_config"]);
}

// Adds the paths of all values of a file, including objects and lists.
void add_paths(const Json& value, const Json::json_pointer& here,
               std::map<std::string, const Json*>& paths, const Json& whole) {
  if (!here.empty()) paths.emplace(here.to_string(), &whole);
  if (value.is_object())
    for (const auto& [key, inner] : value.items()) add_paths(inner, here / key, paths, whole);
  if (value.is_array())
    for (std::size_t i = 0; i < value.size(); ++i) add_paths(value[i], here / i, paths, whole);
}

// Every key of the golden jobs, and some others, each with a value of every type.
TEST(JobFile, WrongTypesAreRefusedWithTheirPaths) {
  const Json golden = read_job_file(testing::source_path("tests/golden/sagemaker/requests.json"));
  std::vector<Json> jobs;
  for (const Json& one : golden.at("cases")) jobs.push_back(one.at("job"));
  jobs.push_back(right());
  jobs.back().update(Json::parse(R"({"compiler_config": {"enabled": true, "debug": true},
      "entry_point": "a", "dependencies": ["x"], "environment": {"A": "b"},
      "git_config": {"repo": "https://h/x", "branch": "b", "commit": "c", "token": "t"},
      "instance_placement_config": {"EnableMultipleJobs": true,
        "PlacementSpecifications": [{"UltraServerId": "u", "InstanceCount": 1}]},
      "container_arguments": ["a"], "experiment_config": {"RunName": "a"}, "tags": {"a": "b"},
      "metric_definitions": [{"Name": "a", "Regex": "b"}]})"));
  std::map<std::string, const Json*> paths;
  for (const Json& job : jobs) add_paths(job, Json::json_pointer(), paths, job);
  EXPECT_GT(paths.size(), 150U);
  int refused = 0;
  for (const auto& [path, job] : paths)
    for (const Json& value :
         {Json("x"), Json(7), Json(1.5), Json(true), Json::array({1}), Json::object({{"a", 1}})}) {
      Json wrong = *job;
      wrong[Json::json_pointer(path)] = value;
      std::string said;
      ASSERT_NO_THROW(said = problems_of(wrong)) << path << " " << value;
      if (said == "accepted") continue;
      ++refused;
      std::istringstream lines(said);
      for (std::string line; std::getline(lines, line);)
        EXPECT_TRUE(line.starts_with('/')) << path << " " << value << ": " << line;
    }
  EXPECT_GT(refused, 600);
}

// Any contents give either a list of problems or a request.
TEST(JobFile, AnyShapeIsReadOrRefused) {
  const std::vector<Json> values = {nullptr,
                                    true,
                                    -1,
                                    1e300,
                                    "",
                                    "x",
                                    Json::array(),
                                    Json::object(),
                                    {{"enabled", 3}},
                                    Json::array({1, "a"}),
                                    {{"smdistributed", Json::array()}},
                                    {{"modelparallel", 1}}};
  std::vector<std::string> keys;
  for (const char* name : {"role",
                           "region",
                           "image_uri",
                           "instance_type",
                           "instance_count",
                           "instance_groups",
                           "inputs",
                           "distribution",
                           "hyperparameters",
                           "tags",
                           "environment",
                           "metric_definitions",
                           "git_config",
                           "compiler_config",
                           "debugger_hook_config",
                           "profiler_config",
                           "subnets",
                           "entry_point",
                           "tensorboard_output_config",
                           "experiment_config",
                           "job_name"})
    keys.emplace_back(name);
  for (const std::string& key : keys)
    for (const Json& value : values) {
      EXPECT_NO_THROW(static_cast<void>(changed({{key, value}}))) << key << " " << value;
      EXPECT_NO_THROW(static_cast<void>(changed({{"distribution", {{"smdistributed", value}}}})));
    }
  EXPECT_THAT(problems_of(Json::array()), HasSubstr("an object is needed"));
}

}  // namespace
}  // namespace shoal::sagemaker
