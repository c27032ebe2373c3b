#include "shoal/sagemaker/container/command.h"

#include "sagemaker/container/opt_ml.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal::sagemaker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

VariableReader no_variables() {
  return [](std::string_view) -> std::optional<std::string> { return std::nullopt; };
}

TrainCommand command_of(const OptMl& ml) {
  return train_command(read_contract(ml.root(), {}, no_variables()), {}, ml.path("code"));
}

std::string refused(const OptMl& ml) {
  try {
    command_of(ml);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

// The word after --NAME; "none" without it.
std::string option(const TrainCommand& command, const std::string& name) {
  const auto found = std::ranges::find(command.words, "--" + name);
  return found == command.words.end() ? "none" : *(found + 1);
}

TEST(TrainCommand, HasTheHyperparametersAsOptions) {
  OptMl ml;
  ml.hyperparameters({{"learning_rate", "5e-05"},
                      {"fp16", "true"},
                      {"run_name", "\"a b\""},
                      {"report_to", "[\"none\", \"tensorboard\"]"},
                      {"unset", "null"},
                      {"mp_parameters", "{\"partitions\": 2}"}});
  const TrainCommand made = command_of(ml);
  EXPECT_THAT(
      made.words,
      ElementsAre("shoal", "train", "--learning_rate", "5e-05", "--fp16", "true", "--run_name",
                  "a b", "--report_to", "none,tensorboard", "--mp_parameters", "{\"partitions\":2}",
                  "--output_dir", ml.path("checkpoints"), "--resume_from_checkpoint", "true"));
}

TEST(TrainCommand, TakesValuesThatLookLikeOptions) {
  EXPECT_THAT(option_words({{"run_name", "--odd"}, {"seed", -1}, {"x", ""}}),
              ElementsAre("--run_name=--odd", "--seed", "-1", "--x", ""));
}

TEST(TrainCommand, TrainsBesideTheModelsDirectory) {
  OptMl ml;
  ml.hyperparameters({{"output_dir", "\"" + ml.path("model") + "/\""}});
  EXPECT_EQ(command_of(ml).output_dir, ml.path("checkpoints"));
  ml.hyperparameters({{"output-dir", "\"/elsewhere\""}, {"resume_from_checkpoint", "false"}});
  const TrainCommand made = command_of(ml);
  EXPECT_EQ(made.output_dir, "/elsewhere");
  EXPECT_EQ(option(made, "output_dir"), "/elsewhere");
  EXPECT_EQ(option(made, "resume_from_checkpoint"), "false");
  EXPECT_EQ(std::ranges::count(made.words, "--resume_from_checkpoint"), 1);
}

TEST(TrainCommand, TakesTheOnlyFilesOfChannels) {
  OptMl ml;
  ml.channels({{"training", {"a.txt"}},
               {"eval", {"nested/v.txt", ".hidden"}},
               {"test", {"t.csv"}},
               {"model", {"config.json"}}});
  TrainCommand made = command_of(ml);
  EXPECT_EQ(option(made, "train_file"), ml.path("input/data/training/a.txt"));
  EXPECT_EQ(option(made, "validation_file"), ml.path("input/data/eval/nested/v.txt"));
  EXPECT_EQ(option(made, "test_file"), "none");  // the job asks for no predictions
  EXPECT_EQ(option(made, "model_name_or_path"), ml.path("input/data/model"));
  ml.hyperparameters({{"do_predict", "true"}});
  EXPECT_EQ(option(command_of(ml), "test_file"), ml.path("input/data/test/t.csv"));
  ml.hyperparameters(OptMl::Json::object());
  ml.channels({{"training", {"a.txt"}}, {"test", {"t.csv"}}});
  EXPECT_EQ(option(command_of(ml), "validation_file"), ml.path("input/data/test/t.csv"));
}

TEST(TrainCommand, LeavesAChoiceToShoalTrain) {
  OptMl ml;
  ml.channels({{"train", {"a.txt", "b.txt"}}, {"eval", {"v.txt"}}});
  EXPECT_EQ(option(command_of(ml), "train_file"), "none");
  EXPECT_EQ(option(command_of(ml), "validation_file"), "none");
  ml.hyperparameters({{"streaming", "true"}});
  EXPECT_EQ(option(command_of(ml), "train_file"), ml.path("input/data/train/*"));
  ml.hyperparameters({{"train_file", "\"/x\""}});
  EXPECT_EQ(option(command_of(ml), "train_file"), "/x");
  EXPECT_EQ(option(command_of(ml), "validation_file"), "none");
}

OptMl::Json piped(const OptMl::Json& more = OptMl::Json::object()) {
  OptMl::Json channel = {{"TrainingInputMode", "Pipe"}};
  channel.update(more);
  return channel;
}

TEST(TrainCommand, StreamsThroughPipes) {
  OptMl ml;
  ml.hyperparameters({{"streaming", "true"}});
  ml.inputs(
      {{"train", piped({{"ContentType", "application/jsonlines"}})}, {"validation", piped()}});
  const TrainCommand made = command_of(ml);
  EXPECT_EQ(option(made, "train_file"), "pipe://" + ml.path("input/data/train.jsonl"));
  EXPECT_EQ(option(made, "validation_file"), ml.path("output/pipes/validation.txt"));
  ASSERT_EQ(made.pipes.size(), 1U);
  EXPECT_EQ(made.pipes[0].prefix, ml.path("input/data/validation"));
  EXPECT_EQ(made.pipes[0].file, ml.path("output/pipes/validation.txt"));
  ml.hyperparameters({{"streaming", "true"},
                      {"sagemaker_mpi_enabled", "true"},
                      {"sagemaker_mpi_num_of_processes_per_host", "4"}});
  ml.inputs({{"train", piped({{"ContentType", "text/csv; charset=utf-8"}})}});
  const TrainCommand four = command_of(ml);
  EXPECT_EQ(option(four, "train_file"), "pipe://" + ml.path("output/pipes/{local_rank}/train.csv"));
  ASSERT_EQ(four.pipes.size(), 1U);
  EXPECT_EQ(four.pipes[0].fan_out, ml.path("output/pipes"));
  EXPECT_EQ(four.pipes[0].ranks, 4);
}

TEST(TrainCommand, RefusesWhatAPipeCannotDo) {
  OptMl ml({"algo-1", "algo-2"});
  ml.inputs({{"train", piped()}});
  EXPECT_THAT(refused(ml), HasSubstr("input_mode to FastFile"));
  ml.hyperparameters({{"streaming", "true"}, {"sagemaker_mpi_enabled", "true"}});
  EXPECT_EQ(option(command_of(ml), "train_file"), "pipe://" + ml.path("input/data/train.txt"));
  ml.inputs({{"train", piped({{"S3DistributionType", "ShardedByS3Key"}})}});
  EXPECT_THAT(refused(ml), HasSubstr("FullyReplicated"));
  ml.inputs({{"train", piped({{"RecordWrapperType", "RecordIO"}})}});
  EXPECT_THAT(refused(ml), HasSubstr("RecordIO"));
  ml.inputs({{"train", piped({{"ContentType", "image/png"}})}});
  EXPECT_THAT(refused(ml), HasSubstr("a pipe of image/png"));
  ml.channels({{"validation", {"a.txt", "b.txt"}}});
  ml.inputs({{"train", piped()}, {"validation", {{"TrainingInputMode", "File"}}}});
  EXPECT_THAT(refused(ml), HasSubstr("channel validation has 2 files"));
}

TEST(TrainCommand, RefusesOtherFilesOnEachHost) {
  const OptMl::Json sharded = {
      {"train", {{"TrainingInputMode", "File"}, {"S3DistributionType", "ShardedByS3Key"}}}};
  OptMl two({"algo-1", "algo-2"}), one;
  two.inputs(sharded);
  one.inputs(sharded);
  EXPECT_THAT(refused(two), HasSubstr("channel train is ShardedByS3Key: each of the 2 hosts"));
  EXPECT_EQ(refused(one), "accepted");  // it has all of them
}

TEST(TrainCommand, ReadsTheRunsFile) {
  OptMl ml;
  ml.channels({{"train", {"a.txt", "b.txt"}}});
  ml.hyperparameters({{"sagemaker_program", "\"run.json\""}, {"max_steps", "5"}});
  EXPECT_THAT(refused(ml), HasSubstr("entry_point: there is no"));
  ml.write("code/run.json", R"({"data": {"train_file": "x.txt"}, "output_dir": "/run"})");
  const TrainCommand made = command_of(ml);
  EXPECT_THAT(made.words,
              ElementsAre("shoal", "train", ml.path("code/run.json"), "--max_steps", "5",
                          "--output_dir", "/run", "--resume_from_checkpoint", "true"));
  ml.hyperparameters({{"sagemaker_program", "\"train.sh\""}});
  EXPECT_THAT(refused(ml), HasSubstr("this image runs Shoal"));
}

// Arguments in the form of Amazon's toolkit (SM_USER_ARGS).
TEST(TrainCommand, RunsAScript) {
  OptMl ml({"algo-1", "algo-2"});
  OptMl::Json all = {{"sagemaker_program", "\"examples/train.py\""},
                     {"model_name_or_path", "\"bert\""},
                     {"epochs", "2"},
                     {"do_train", "true"},
                     {"lr", "5e-05"},
                     {"list", "[1, \"a\"]"},
                     {"b", "4"},
                     {"empty", "null"}};
  ml.hyperparameters(all);
  ml.inputs({{"train", {{"S3DistributionType", "ShardedByS3Key"}}}});  // the script reads it
  EXPECT_THAT(refused(ml), HasSubstr("entry_point: there is no"));
  ml.write("code/examples/train.py", "");
  const TrainCommand alone = command_of(ml);
  EXPECT_THAT(alone.words, ElementsAre("python3", "examples/train.py", "-b", "4", "--do_train",
                                       "True", "--empty", "", "--epochs", "2", "--list", "[1, 'a']",
                                       "--lr", "5e-05", "--model_name_or_path", "bert"));
  EXPECT_EQ(alone.directory, ml.path("code"));
  EXPECT_EQ(alone.output_dir, "");
  all["sagemaker_distributed_dataparallel_enabled"] = "true";
  all["use_cpu"] = "true";
  ml.hyperparameters(all);
  const TrainCommand ranks = command_of(ml);
  EXPECT_EQ(ranks.words[0], "train");
  EXPECT_EQ(ranks.words[1], "rank");
  EXPECT_EQ(ranks.words[2], "python3");
  EXPECT_EQ(ranks.rank_name, "shoal-rank");
  EXPECT_TRUE(ranks.on_cpu);
}

TEST(TrainCommand, CapturesStepsWithTheCompiler) {
  OptMl ml;
  ml.hyperparameters({{"sagemaker_training_compiler_enabled", "true"}});
  EXPECT_EQ(option(command_of(ml), "step_capture"), "on");
  ml.hyperparameters({{"sagemaker_training_compiler_enabled", "true"}, {"step_capture", "off"}});
  EXPECT_EQ(option(command_of(ml), "step_capture"), "off");
}

}  // namespace
}  // namespace shoal::sagemaker
