// shoal submit: the request made from a job file, or the errors in the file.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "apps/program.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

namespace shoal {
namespace {

using ::testing::HasSubstr;

class Submit : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(root_ / "code");
    std::ofstream(root_ / "code/run.json") << "{}";
  }
  test::ProgramResult dry_run(const nlohmann::json& changes,
                              const std::vector<std::string>& words = {"--dry-run", "--json"},
                              const std::vector<std::string>& environment = {
                                  "AWS_REGION=eu-north-1", "AWS_SECRET_ACCESS_KEY=geheim"}) {
    nlohmann::json job = {{"role", "arn:aws:iam::111122223333:role/R"},
                          {"image_uri", "shoal:0.1.0-cuda12"},
                          {"instance_type", "ml.g5.xlarge"},
                          {"instance_count", 1},
                          {"source_dir", "code"},
                          {"entry_point", "run.json"},
                          {"inputs", {{"train", "s3://b/train"}, {"model", "s3://b/model"}}}};
    job.update(changes);
    std::ofstream(root_ / "job.json") << job;
    // The program runs in another directory: paths in the file are relative to the file.
    std::vector<std::string> command = {SHOAL_PROGRAM, "submit", root_ / "job.json"};
    command.insert(command.end(), words.begin(), words.end());
    return test::run_program(
        command, {.directory = "/", .environment = environment, .signal_when_out_has = {}});
  }
  testing::TemporaryDirectory root_;
};

TEST_F(Submit, PrintsTheRequest) {
  const auto result = dry_run({{"use_spot_instances", true}, {"max_wait", 90000}});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto request = nlohmann::json::parse(result.out);
  EXPECT_EQ(request.at("OutputDataConfig").at("S3OutputPath"),
            "s3://sagemaker-eu-north-1-111122223333/");
  const std::string name = request.at("TrainingJobName");
  EXPECT_THAT(name, ::testing::MatchesRegex("shoal-[0-9-]{23}"));
  EXPECT_EQ(request.at("HyperParameters").at("sagemaker_submit_directory"),
            "\"s3://sagemaker-eu-north-1-111122223333/" + name + "/source/sourcedir.tar.gz\"");
  EXPECT_THAT(result.err, HasSubstr("shoal submit: use_spot_instances without checkpoint_s3_uri"));
  EXPECT_THAT(result.out + result.err, ::testing::Not(HasSubstr("geheim")));
}

TEST_F(Submit, SummarizesTheJob) {
  std::ofstream(root_ / "code/run.json") << R"({"task_name": "mnli"})";
  const auto result =
      dry_run({{"job_name", "mine"},
               {"instance_type", "ml.p4d.24xlarge"},
               {"instance_count", 2},
               {"use_spot_instances", true},
               {"max_run", 5400},
               {"max_wait", 90000},
               {"hyperparameters",
                {{"learning_rate", 3e-5}, {"do_train", true}, {"output_dir", "/opt/ml/model"}}},
               {"environment", {{"HF_TOKEN", "geheim"}}},
               {"distribution", {{"smdistributed", {{"dataparallel", {{"enabled", true}}}}}}}},
              {"--dry-run"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out,
            "job        mine in eu-north-1\n"
            "image      shoal:0.1.0-cuda12\n"
            "instances  2 x ml.p4d.24xlarge (8 A100 each), 30 GB of disk each\n"
            "ranks      16, data-parallel (smdistributed)\n"
            "runs       shoal train run.json from code: text-classification\n"
            "options    do_train true, learning_rate 3e-05, output_dir /opt/ml/model\n"
            "data       model: s3://b/model\n"
            "           train: s3://b/train\n"
            "output     s3://sagemaker-eu-north-1-111122223333/mine/output/model.tar.gz\n"
            "time       at most 1.5 h on spot instances, done or given up after 25 h; no "
            "checkpoints\n"
            "price      at most 98.32 dollars, 2 x 32.7726 an hour: the planner's example "
            "(us-east-1, on demand, 2024-11); spot costs less\n"
            "warnings   use_spot_instances without checkpoint_s3_uri: an interrupted job begins "
            "anew\n");
}

TEST_F(Submit, SummarizesOtherLaunches) {
  std::ofstream(root_ / "code/train.py") << "pass";
  const auto said = [this](const nlohmann::json& changes) {
    const auto result = dry_run(changes, {"--dry-run"});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };
  const std::string alone = said({{"instance_count", 3}, {"checkpoint_s3_uri", "s3://b/c"}});
  EXPECT_THAT(alone, HasSubstr("ranks      3, one on each instance (no distribution)\n"));
  EXPECT_THAT(alone, HasSubstr("time       at most 24 h; checkpoints in s3://b/c\n"));
  EXPECT_THAT(alone, HasSubstr("price      not known: the planner has no price of ml.g5.xlarge\n"));
  EXPECT_THAT(alone, HasSubstr("warnings   none\n"));
  const std::string parallel =
      said({{"image_uri", "shoal-pytorch:0.1.0-cuda12"},
            {"instance_type", "ml.p4d.24xlarge"},
            {"entry_point", "train.py"},
            {"hyperparameters", {{"api_key", "geheim"}}},
            {"distribution",
             {{"smdistributed",
               {{"modelparallel",
                 {{"enabled", true}, {"parameters", {{"partitions", 4}, {"ddp", true}}}}}}},
              {"mpi", {{"enabled", true}, {"processes_per_host", 4}}}}}});
  EXPECT_THAT(parallel, HasSubstr("ranks      4, model-parallel: ddp true, partitions 4\n"));
  EXPECT_THAT(parallel, HasSubstr("runs       train.py from code\n"));
  EXPECT_THAT(parallel, HasSubstr("options    api_key ***\n"));
}

TEST_F(Submit, SaysEverythingThatIsWrong) {
  const auto result = dry_run({{"max_run", 0}, {"instance_type", "ml.g5.xlage"}});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("/max_run: is 0"));
  EXPECT_THAT(result.err, HasSubstr("did you mean ml.g5.xlarge?"));
  EXPECT_EQ(result.out, "");
  // Errors in the file, missing code and options that `shoal train` refuses are reported together.
  const auto all = dry_run({{"max_run", 0},
                            {"dependencies", {"gone"}},
                            {"hyperparameters", {{"learning_rte", 1}, {"test_file", "/x"}}},
                            {"inputs", {{"model", "s3://b/model"}}}});
  EXPECT_EQ(all.status, 2);
  EXPECT_THAT(all.err, ::testing::AllOf(HasSubstr("/max_run: is 0"), HasSubstr("gone"),
                                        HasSubstr("/hyperparameters/learning_rte"),
                                        HasSubstr("/hyperparameters/test_file: is /x, but"),
                                        HasSubstr("nothing brings the training data")));
}

// Parts that neither image, channel nor code provides are found before anything is paid for.
TEST_F(Submit, LooksForModelTokenizerAndData) {
  const auto refused = [this](const nlohmann::json& changes, const std::string& text) {
    const auto result = dry_run(changes);
    EXPECT_EQ(result.status, 2) << changes;
    EXPECT_THAT(result.err, HasSubstr(text)) << changes;
    EXPECT_EQ(result.out, "");
  };
  const auto with = [](const nlohmann::json& options) {
    return nlohmann::json{{"hyperparameters", options}};
  };
  refused({{"inputs", {{"model", "s3://b/m"}}}}, "/inputs: nothing brings the training data");
  refused({{"inputs", {{"train", "s3://b/t"}}}}, "/inputs: nothing brings a model");
  refused(with({{"train_file", "/opt/ml/input/data/texts/a.txt"}}),
          "/hyperparameters/train_file: is /opt/ml/input/data/texts/a.txt, but the job has no "
          "channel texts (inputs); it has model, train");
  refused(with({{"train_file", "/home/me/a.txt"}}), "nothing brings it into the container");
  refused(with({{"train_file", "a.txt"}}), "neither a channel nor the job's code brings it");
  refused(with({{"model_name_or_path", "org/bert"}}), "nothing is downloaded");
  refused(with({{"tokenizer_name", "gpt2"}}), "/hyperparameters/tokenizer_name: is gpt2, but no");
  refused(with({{"do_predict", true}}), "nothing brings what to predict");
  refused({{"hyperparameters",
            {{"model_type", "gpt2"}, {"train_file", "/opt/ml/input/data/train/a.txt"}}},
           {"inputs", {{"train", "s3://b/t"}}}},
          "nothing brings a tokenizer");
  std::ofstream(root_ / "code/a.txt") << "text";
  for (const nlohmann::json& options : std::vector<nlohmann::json>{
           {{"train_file", "/opt/ml/input/data/train/a.txt"}},
           {{"train_file", "a.txt"}},
           {{"train_file", "/opt/ml/code/a.txt"}},
           {{"model_name_or_path", "org/model"}},
           {{"model_type", "gpt2"}, {"tokenizer_name", "/opt/ml/input/data/model"}}}) {
    const auto result = dry_run(with(options));
    EXPECT_EQ(result.status, 0) << options << result.err;
  }
}

// Lists, several names, ".." and checkpoints are checked like a single file.
TEST_F(Submit, LooksForEachNameOfTheData) {
  const std::string train = "/opt/ml/input/data/train/";
  const auto with = [](nlohmann::json options,
                       const nlohmann::json& more = nlohmann::json::object()) {
    options["task"] = "causal-lm";
    nlohmann::json changes = {{"hyperparameters", options}};
    changes.update(more);
    return changes;
  };
  const auto streamed = [&](const std::string& file) {
    return with({{"streaming", true}, {"max_steps", 3}, {"train_file", file}});
  };
  std::ofstream(root_ / "code/list") << "# two\n"
                                     << train << "a.txt\n/opt/ml/input/data/nope/b.txt\n";
  std::ofstream(root_ / "code/right") << train << "a.txt\ns3://b/c/\n";
  std::ofstream(root_ / "code/run2.json") << "{";
  for (const nlohmann::json& right :
       {streamed("@" + train + "list"), streamed(train), streamed("s3://b/x/"),
        streamed(train + "*.txt," + train + "../train/b.txt"), streamed("@right"),
        with({{"train_file", "s3://b/x/one.txt"}}),
        with({{"train_file", "../input/data/train/a.txt"}}),
        with({{"resume_from_checkpoint", "/opt/ml/checkpoints/checkpoint-5"}},
             {{"checkpoint_s3_uri", "s3://b/c"}}),
        with({{"plan", train + "plan.json"}}), with({{"auto", true}, {"machine", "p4d.24xlarge"}}),
        with({{"resume_from_checkpoint", true}})}) {
    const auto result = dry_run(right);
    EXPECT_EQ(result.status, 0) << right << result.err;
  }
  for (const auto& [wrong, text] : std::vector<std::pair<nlohmann::json, std::string>>{
           {streamed("@/opt/ml/input/data/nope/list"), "is @/opt/ml/input/data/nope/list, but"},
           {streamed(train + "a.txt,/opt/ml/input/data/nope/b.txt"), "no channel nope"},
           {streamed("@list"), "is /opt/ml/input/data/nope/b.txt, but the job has no channel nope"},
           {streamed("@gone"), "neither a channel nor the job's code"},
           {streamed(train + "../gone/a.txt"), "no channel gone"},
           {streamed("http://host/x.txt"), "only those of s3://"},
           {with({{"train_file", train + "../../../../x.txt"}}), "nothing brings it"},
           {with({{"train_file", "/opt/ml/input/nope/x.txt"}}), "nothing brings it"},
           {with({{"train_file", "/opt/ml/checkpoints2/x.txt"}}), "nothing brings it"},
           {with({{"model_name_or_path", "/opt/ml/model"}}), "nothing brings it"},
           {with({{"train_file", "s3://b/x/"}}), "give streaming true and max_steps"},
           {with({{"train_file", train + "a.txt," + train + "b.txt"}}), "give streaming true"},
           {with({{"train_file", "@" + train + "list"}}), "give streaming true and max_steps"},
           {with({{"train_file", train}}), "names several files"},
           {with({{"collectives", "@rules.txt"}}),
            "/hyperparameters/collectives: is rules.txt, but"},
           {with({{"pipeline_parallel_degree", 2},
                  {"load_partition", true},
                  {"partition_file", "/opt/ml/input/data/zz/p.json"}}),
            "has no channel zz"},
           {with({{"plan", "/opt/ml/input/data/zz/plan.json"}}), "has no channel zz"},
           {with({{"auto", true}, {"machine", "nowhere.json"}}),
            "/hyperparameters/machine: is nowhere.json, but"},
           {with({{"resume_from_checkpoint", "/nowhere/c"}}),
            "is /nowhere/c, but nothing brings it"},
           {with({{"resume_from_checkpoint", "/opt/ml/checkpoints/checkpoint-5"}}),
            "/hyperparameters/resume_from_checkpoint: is /opt/ml/checkpoints/checkpoint-5, but "
            "without checkpoint_s3_uri"}}) {
    const auto result = dry_run(wrong);
    EXPECT_EQ(result.status, 2) << wrong;
    EXPECT_THAT(result.err, HasSubstr(text)) << wrong;
  }
  std::ofstream(root_ / "code/rules.txt") << "all_reduce:@ring\n";
  const auto ruled = dry_run(with({{"collectives", "@rules.txt"}}));
  EXPECT_EQ(ruled.status, 0) << ruled.err;
  const auto broken = dry_run({{"entry_point", "run2.json"}, {"inputs", {{"train", "s3://b/t"}}}});
  EXPECT_EQ(broken.status, 2);
  EXPECT_THAT(broken.err, HasSubstr("run2.json"));
  EXPECT_THAT(broken.err, ::testing::Not(HasSubstr("nothing brings a model")));
  const auto cloned = dry_run({{"git_config", {{"repo", "https://example.com/a.git"}}}});
  EXPECT_EQ(cloned.status, 0) << cloned.err;
  EXPECT_THAT(cloned.err, HasSubstr("the code is in git (git_config)"));
  EXPECT_THAT(cloned.err, HasSubstr("are not checked"));
}

TEST_F(Submit, KnowsImagesThatDoNotRunShoal) {
  const std::string amazons =
      "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-training:2.1";
  const auto refused = dry_run({{"image_uri", amazons}});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("/image_uri: " + amazons +
                                     " is Amazon's image, which does not "
                                     "run Shoal, and so not run.json"));
  std::ofstream(root_ / "code/train.py") << "pass";
  const auto script = dry_run({{"image_uri", amazons}, {"entry_point", "train.py"}});
  EXPECT_EQ(script.status, 0) << script.err;
  EXPECT_THAT(script.err, HasSubstr("Shoal is not in it"));
  const auto unknown = dry_run({{"image_uri", "team/trainer:1"}});
  EXPECT_EQ(unknown.status, 0) << unknown.err;
  EXPECT_THAT(unknown.err, HasSubstr("whether image team/trainer:1 runs Shoal cannot be seen"));
  EXPECT_THAT(dry_run({{"image_uri", "shoal:0.0.9-cpu"}}).err, HasSubstr("of another version"));
}

// Commit 39c9efe0 only printed a note and submitted the job.
TEST_F(Submit, RefusesJobsThatShoalsContainerWouldRefuse) {
  std::ofstream(root_ / "code/train.sh") << "pass";
  const auto shell = dry_run({{"entry_point", "train.sh"}});
  EXPECT_EQ(shell.status, 2);
  EXPECT_THAT(shell.err, HasSubstr("/entry_point: is train.sh, but Shoal's image runs a JSON"));
  std::ofstream(root_ / "code/train.py") << "pass";
  const auto script = dry_run({{"entry_point", "train.py"}});
  EXPECT_EQ(script.status, 2);
  EXPECT_THAT(script.err, HasSubstr("/entry_point: is train.py, but the image shoal:0.1.0-cuda12 "
                                    "has no Python; use Shoal's image of the target pytorch"));
  EXPECT_EQ(dry_run({{"entry_point", "train.py"}, {"container_entry_point", {"python3"}}}).status,
            0);
  const nlohmann::json inputs = {
      {"train", {{"s3_data", "s3://x/y"}, {"distribution", "ShardedByS3Key"}}}};
  const auto sharded = dry_run({{"inputs", inputs}, {"instance_count", 2}});
  EXPECT_EQ(sharded.status, 2);
  EXPECT_THAT(sharded.err, HasSubstr("/inputs/train/distribution: ShardedByS3Key gives each host"));
  EXPECT_THAT(dry_run({{"inputs", inputs}, {"instance_count", 1}}).err,
              ::testing::Not(HasSubstr("ShardedByS3Key")));
}

// The script's arguments and channels are its own, so they are neither checked nor noted.
TEST_F(Submit, TakesAScriptForTheImageThatHasPython) {
  std::ofstream(root_ / "code/train.py") << "pass";
  const auto script = dry_run(
      {{"image_uri", "1.dkr.ecr.eu-north-1.amazonaws.com/shoal-pytorch:0.1.0-cuda12"},
       {"entry_point", "train.py"},
       {"instance_count", 2},
       {"hyperparameters", {{"my_option", 3}, {"model_name_or_path", "bert-base-uncased"}}},
       {"distribution", {{"smdistributed", {{"dataparallel", {{"enabled", true}}}}}}},
       {"inputs", {{"train", {{"s3_data", "s3://x/y"}, {"distribution", "ShardedByS3Key"}}}}}});
  EXPECT_EQ(script.status, 0) << script.err;
  EXPECT_EQ(script.err, "");
  const auto options = nlohmann::json::parse(script.out).at("HyperParameters");
  EXPECT_EQ(options.at("sagemaker_program"), "\"train.py\"");
  EXPECT_EQ(options.at("my_option"), "3");
  const auto cloned = dry_run({{"image_uri", "shoal-pytorch:0.1.0-cpu"},
                               {"entry_point", "run_qa.py"},
                               {"source_dir", "examples/question-answering"},
                               {"git_config", {{"repo", "https://example.com/t.git"}}}});
  EXPECT_EQ(cloned.status, 0) << cloned.err;
}

// A misspelt option is reported now, instead of after minutes of a paid machine.
TEST_F(Submit, KnowsTheOptionsOfShoalsImage) {
  const auto wrong = dry_run({{"hyperparameters", {{"learning_rte", 1}, {"max-steps", "x"}}}});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("learning_rate"));
  EXPECT_THAT(wrong.err, HasSubstr("/hyperparameters/max_steps"));
  std::ofstream(root_ / "code/run.json") << R"({"max_stepz": 3})";
  EXPECT_THAT(dry_run(nlohmann::json::object()).err, HasSubstr("run.json"));
  EXPECT_EQ(dry_run({{"image_uri", "shoal:0.0.9-cuda12"}}).status, 0) << "another version";
  EXPECT_EQ(dry_run({{"image_uri", "other:0.1.0-cuda12"}}).status, 0) << "another image";
  std::ofstream(root_ / "code/run.json") << R"({"max_steps": 3})";
  const auto right = dry_run({{"hyperparameters",
                               {{"learning_rate", 1e-4},
                                {"do_train", true},
                                {"weight_decay", "0.1"},
                                {"seed", nullptr}}}});
  EXPECT_EQ(right.status, 0) << right.err;
  EXPECT_EQ(right.err, "");
}

// The setting is found in every place from which `shoal train` reads it.
TEST_F(Submit, KnowsInstancesWithoutBf16) {
  const nlohmann::json v100 = {{"instance_type", "ml.p3.16xlarge"}};
  std::ofstream(root_ / "code/run.json") << R"({"bf16": true})";
  const auto in_file = dry_run(v100);
  EXPECT_EQ(in_file.status, 2) << in_file.out;
  EXPECT_THAT(in_file.err, HasSubstr("/instance_type: ml.p3.16xlarge has V100 GPUs (compute "
                                     "capability 7.0), which have no bf16"));
  EXPECT_EQ(dry_run({{"instance_type", "ml.p4d.24xlarge"}}).status, 0);
  auto overridden = v100;
  overridden["hyperparameters"] = {{"bf16", false}};
  EXPECT_EQ(dry_run(overridden).status, 0) << "hyperparameters win";
  std::ofstream(root_ / "code/run.json") << R"({"bf16": true, "use_cpu": true})";
  EXPECT_EQ(dry_run(v100).status, 0);
  std::ofstream(root_ / "code/run.json") << "{}";
  auto smp = v100;
  smp["distribution"] = {
      {"smdistributed",
       {{"modelparallel",
         {{"enabled", true}, {"parameters", {{"partitions", 2}, {"bf16", true}}}}}}},
      {"mpi", {{"enabled", true}, {"processes_per_host", 8}}}};
  EXPECT_THAT(dry_run(smp).err, HasSubstr("which have no bf16"));
}

// `shoal submit` finds it in the same way.
TEST_F(Submit, FindsTheRegionOfAProfile) {
  std::ofstream(root_ / "config") << "[profile dev]\nregion = ap-south-1\n";
  const std::vector<std::string> environment = {
      "AWS_REGION=", "AWS_DEFAULT_REGION=", "AWS_PROFILE=dev",
      "AWS_CONFIG_FILE=" + root_ / "config"};
  const auto result = dry_run(nlohmann::json::object(), {"--dry-run", "--json"}, environment);
  if (result.status != 0 &&
      test::run_program({SHOAL_PROGRAM, "jobs", "list"}, {.environment = environment})
              .err.find("this build has no client") != std::string::npos)
    GTEST_SKIP() << "built without the AWS client, which reads profiles";
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("s3://sagemaker-ap-south-1-111122223333/"));
}

// Several ranks with a GPU each are a valid request.
TEST_F(Submit, TakesAnInstanceOfSeveralGpus) {
  const auto several =
      dry_run({{"distribution", {{"smdistributed", {{"dataparallel", {{"enabled", true}}}}}}},
               {"instance_type", "ml.p4d.24xlarge"}});
  EXPECT_EQ(several.status, 0);
  EXPECT_EQ(several.err, "");
}

TEST_F(Submit, LooksForTheCode) {
  EXPECT_THAT(dry_run({{"entry_point", "other.json"}}).err,
              HasSubstr("entry_point: there is no file"));
  // Files of a git repository can be checked only after it is cloned.
  EXPECT_EQ(
      dry_run({{"entry_point", "other.json"}, {"git_config", {{"repo", "https://host/x"}}}}).status,
      0);
}

// Checking must not wait for a pipe's writer or read a device without end. The error
// names the kind of file.
TEST_F(Submit, AcceptsOnlyFilesAndDirectories) {
  ASSERT_EQ(::mkfifo((root_ / "code/fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", root_ / "code/zero");
  for (const char* name : {"code/texts", "code/texts.json"})
    std::filesystem::create_directory(root_ / name);
  const auto refused = [&](const nlohmann::json& changes, const std::string& where,
                           const std::string& why) {
    const auto result = dry_run(changes);
    EXPECT_EQ(result.status, 2) << changes;
    EXPECT_THAT(result.err, HasSubstr("shoal submit: " + where)) << changes;
    EXPECT_THAT(result.err, HasSubstr(why)) << changes;
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  };
  for (const std::string name : {"fifo", "zero"}) {
    std::filesystem::create_symlink(name, root_ / ("code/" + name + ".json"));
    refused({{"entry_point", name + ".json"}}, "/entry_point: ", "is not a regular file");
    refused({{"source_dir", "code/" + name}}, "/source_dir: ", "is not a directory");
    refused({{"dependencies", nlohmann::json::array({"code/" + name})}},
            "/dependencies: ", "is neither a regular file");
    refused({{"hyperparameters", {{"train_file", name}}}},
            "/hyperparameters/train_file: ", "which is a pipe or a device in the job's code");
    refused({{"hyperparameters",
              {{"train_file", "@/opt/ml/code/" + name}, {"streaming", true}, {"max_steps", 3}}}},
            "/hyperparameters/train_file: ", "which is a pipe or a device in the job's code");
    refused({{"hyperparameters", {{"model_name_or_path", name}}}},
            "/hyperparameters/model_name_or_path: ", "which is a pipe or a device");
  }
  refused({{"entry_point", "texts.json"}}, "/entry_point: ", "is not a regular file");
  refused({{"source_dir", "code/run.json"}}, "/source_dir: ", "is not a directory");
  refused({{"hyperparameters", {{"train_file", "texts"}}}},
          "/hyperparameters/train_file: ", "names several files");
}

TEST_F(Submit, ShowsLongNamesInPart) {
  const std::string name(20000, 'a');
  struct Case {
    nlohmann::json changes;
    std::string where;
  };
  const auto option = [](const std::string& of, const nlohmann::json& value) {
    return nlohmann::json{{"hyperparameters", {{of, value}}}};
  };
  const std::vector<Case> cases = {
      {{{"entry_point", name + ".json"}}, "/entry_point: cannot look at"},
      {{{"source_dir", name}}, "/source_dir: cannot look at"},
      {{{"dependencies", nlohmann::json::array({name})}}, "/dependencies: cannot look at"},
      {{{"inputs", {{name, "s3://b/x"}}}}, "/inputs: nothing brings a model"},
      {option(name, 1), "there is no option 'aaa"},
      {option("train_file", name), "cannot look at"},
      {option("train_file", "/opt/ml/input/data/" + name), "no channel"},
      {option("model_name_or_path", name), "cannot look at"}};
  for (const auto& [changes, where] : cases) {
    const auto result = dry_run(changes);
    EXPECT_EQ(result.status, 2) << where;
    EXPECT_THAT(result.err, HasSubstr(where));
    std::istringstream lines(result.err);
    for (std::string line; std::getline(lines, line);) EXPECT_LT(line.size(), 1500U) << where;
  }
}

// examples/jobs: the dry run has nothing to warn of, and shows what each job is about.
TEST_F(Submit, ExamplesAreReady) {
  const std::map<std::string, std::vector<std::string>> said = {
      {"squad-data-parallel",
       {"2 x ml.p3.16xlarge (8 V100 each)", "ranks      16, data-parallel",
        "runs       shoal train: question-answering", "squad: s3://bucket/squad",
        "at most 4 h; checkpoints in", "at most 195.84 dollars, 2 x 24.48 an hour"}},
      {"mnli-model-parallel",
       {"1 x ml.p3.16xlarge (8 V100)", "ranks      8, model-parallel: microbatches 4",
        "partitions 4", "runs       shoal train: text-classification"}},
      {"sst2-spot",
       {"ranks      1 (no distribution)",
        "at most 1 h on spot instances, done or given up after 2 h",
        "checkpoints in s3://bucket/checkpoints/sst2-spot"}},
      {"gpt2-compiler", {"ranks      1 (no distribution)", "steps are recorded and replayed"}},
      {"albert-pretraining",
       {"ranks      8, data-parallel", "runs       shoal train: masked-lm",
        "steps are recorded and replayed"}}};
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SHOAL_EXAMPLES "/jobs")) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    const std::string name = entry.path().stem();
    ASSERT_TRUE(said.contains(name)) << name;
    const auto result = test::run_program({SHOAL_PROGRAM, "submit", entry.path(), "--dry-run"});
    EXPECT_EQ(result.status, 0) << name << result.err;
    EXPECT_THAT(result.out, HasSubstr("warnings   none\n")) << name;
    EXPECT_THAT(result.out, HasSubstr("us-east-1")) << name;
    for (const std::string& text : said.at(name)) EXPECT_THAT(result.out, HasSubstr(text)) << name;
  }
  EXPECT_EQ(files, said.size());
}

TEST_F(Submit, NeedsItsWords) {
  const auto result = dry_run(nlohmann::json::object(), {"--dryrun"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("--dry-run"));
}

}  // namespace
}  // namespace shoal
