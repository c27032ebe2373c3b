#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>
#include <sys/resource.h>

#include "shoal/train/checkpoint/checkpoint_directory.h"

namespace shoal {
namespace {

using test::error_of;
using test::expect_resume_to_the_bit;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

TEST(TrainerResume, IsBitIdentical) { expect_resume_to_the_bit(toy_arguments(""), {}); }

TEST(TrainerResume, IsBitIdenticalOnTwoRanksWithAccumulationAndWorkers) {
  auto arguments = toy_arguments("");
  arguments.per_device_train_batch_size = 2;
  arguments.gradient_accumulation_steps = 3;  // the last update of an epoch has fewer
  arguments.dataloader_num_workers = 2;
  expect_resume_to_the_bit(arguments, {.ranks = 2});
}

TEST(TrainerResume, IsBitIdenticalInBf16) {
  auto arguments = toy_arguments("");
  arguments.bf16 = true;
  expect_resume_to_the_bit(arguments, {});
}

// The bits of stochastic rounding depend on the update's number and the element, not on the run.
TEST(TrainerResume, IsBitIdenticalWithStochasticRounding) {
  for (const std::string optim : {"adamw", "lamb", "lion", "adafactor"}) {
    auto arguments = toy_arguments("");
    arguments.bf16 = arguments.stochastic_rounding = true;
    arguments.optim = optim;
    expect_resume_to_the_bit(arguments, {.ranks = 2});
  }
  // The same with shards.
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.bf16 = arguments.stochastic_rounding = true;
  arguments.mp_parameters = {{"ddp", true}, {"sharded_data_parallel_degree", 2}};
  arguments.max_steps = 8;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 4;
  const auto whole = run(arguments, {.ranks = 2});
  arguments.resume_from_checkpoint = output / "checkpoint-4";
  const auto rest = run(arguments, {.ranks = 2});
  ASSERT_EQ(rest.main.losses.size(), 4U);
  EXPECT_EQ(rest.main.losses,
            std::vector<double>(whole.main.losses.begin() + 4, whole.main.losses.end()));
}

TEST(TrainerResume, IsBitIdenticalInF16WithItsLossScale) {
  auto arguments = toy_arguments("");
  arguments.fp16 = true;
  expect_resume_to_the_bit(arguments, {});
}

TEST(TrainerResume, PassesOverAnIncompleteCheckpoint) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 9;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 3;
  const auto whole = run(arguments);
  EXPECT_EQ(whole.main.saves, (std::vector<std::int64_t>{3, 6, 9}));
  std::filesystem::remove(output / "checkpoint-9/COMPLETE");
  std::filesystem::resize_file(output / "checkpoint-6/model.safetensors", 100);
  arguments.resume_from_checkpoint = "true";
  const auto rest = run(arguments);
  EXPECT_EQ(rest.main.losses.size(), 6U);  // the losses from step 3 on
  EXPECT_THAT(rest.main.messages, HasSubstr("no COMPLETE marker"));
  EXPECT_THAT(rest.main.messages, HasSubstr("100 bytes"));
  EXPECT_EQ(rest.main.losses.back(), whole.main.losses.back());
}

TEST(TrainerResume, SaysThatNothingIsLeftToTrain) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 4;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 4;
  EXPECT_THAT(run(arguments).main.messages, Not(HasSubstr("nothing is left")));
  arguments.resume_from_checkpoint = "true";
  arguments.max_steps = 3;
  const auto rest = run(arguments);
  EXPECT_TRUE(rest.main.losses.empty());
  EXPECT_THAT(rest.main.messages,
              HasSubstr("nothing is left to train: the checkpoint is of step 4, the last is 3"));
}

TEST(TrainerResume, RefusesUnsupportedResumes) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 4;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  run(arguments);
  EXPECT_THAT(error_of(arguments), HasSubstr("--resume_from_checkpoint true"));
  arguments.resume_from_checkpoint = output / "checkpoint-3";
  EXPECT_THAT(error_of(arguments),
              HasSubstr("it is no checkpoint of a run (no trainer_state.json)"));
  std::filesystem::remove(output / "checkpoint-4/COMPLETE");
  arguments.resume_from_checkpoint = output / "checkpoint-4";
  EXPECT_THAT(error_of(arguments), HasSubstr("no COMPLETE marker"));
  arguments.resume_from_checkpoint = output / "checkpoint-2";
  RunOptions wider;
  wider.config.hidden_size = 48;
  EXPECT_THAT(error_of(arguments, wider), HasSubstr("n_embd is 24 in " + output.path()));
  CheckpointTransaction(output / "model-only", 2).commit();
  arguments.resume_from_checkpoint = output / "model-only";
  EXPECT_THAT(error_of(arguments), HasSubstr("a new run with --model_name_or_path"));
  // None of these runs touched the existing checkpoint.
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-2", true), std::nullopt);
  arguments.resume_from_checkpoint = "false";
  arguments.overwrite_output_dir = true;
  arguments.save_strategy = Interval::no;
  EXPECT_EQ(run(arguments).main.losses.size(), 4U);
  EXPECT_TRUE(list_checkpoints(output.path()).empty());
}

// This happens if output_dir is local to each host.
TEST(TrainerResume, RanksThatSeeDifferentCheckpointsAreRefused) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output / "0");
  arguments.max_steps = 2;
  arguments.save_strategy = Interval::steps;
  run(arguments);
  arguments.resume_from_checkpoint = "true";
  RunOptions options{.ranks = 2};
  options.arguments_of = [&](int rank) {
    TrainingArguments own = arguments;
    own.output_dir = output / std::to_string(rank);
    return own;
  };
  EXPECT_THAT(error_of(arguments, options),
              HasSubstr("rank 0 would resume from step 2, but rank 1 from no checkpoint"));
}

TEST(TrainerResume, ALossScaleThatWasNotDynamicIsNotTaken) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 2;
  arguments.save_strategy = Interval::steps;
  run(arguments);  // f32
  arguments.max_steps = 4;
  arguments.fp16 = true;
  arguments.resume_from_checkpoint = "true";
  const auto rest = run(arguments);
  EXPECT_THAT(rest.main.messages, HasSubstr("the loss scale begins at 65536"));
  const TrainerState state = read_trainer_state(output / "checkpoint-4");
  EXPECT_TRUE(state.loss_scale_dynamic);
  EXPECT_GT(state.loss_scale, 1000) << "gradients of a scale of 1 are lost in f16";
}

TEST(TrainerResume, AnIncompleteCheckpointIsNotOverwrittenUnasked) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 2;
  std::filesystem::create_directory(output / "checkpoint-1");
  arguments.resume_from_checkpoint = "true";
  EXPECT_THAT(error_of(arguments), HasSubstr("none is whole"));
  EXPECT_TRUE(std::filesystem::exists(output / "checkpoint-1"));
  arguments.overwrite_output_dir = true;
  const auto begun = run(arguments);
  EXPECT_EQ(begun.main.losses.size(), 2U);
  EXPECT_THAT(begun.main.messages, HasSubstr("checkpoint-1 is passed over"));
  EXPECT_THAT(begun.main.messages, HasSubstr("training begins at step 0"));
}

TEST(TrainerResume, MayRestartItsEpoch) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 9;  // an epoch and a half
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 3;
  run(arguments, {.stop_after = 3});
  arguments.resume_from_checkpoint = output / "checkpoint-3";
  EXPECT_EQ(run(arguments).main.logs.back()["epoch"], 1.5);
  arguments.ignore_data_skip = true;
  EXPECT_EQ(run(arguments).main.logs.back()["epoch"], 1.0);
}

// A position in an epoch is meaningless if the epoch has other rows.
TEST(TrainerResume, WarnsOfChangedDataOptions) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 6;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  const nlohmann::json packed = {
      {"packing", true}, {"packing_strategy", "bfd"}, {"block_size", 12}, {"task_name", nullptr}};
  RunOptions options;
  const auto warnings = [&](const nlohmann::json& data_options) {
    options.prepare = [&](CausalLmTask&, TrainerParts& parts) {
      parts.data_options = data_options;
    };
    std::string lines;
    std::istringstream all(run(arguments, options).main.messages);
    for (std::string line; std::getline(all, line);)
      if (line.starts_with("warning: ") && line.find("of a later step") == line.npos)
        lines += line + "\n";
    return lines;
  };
  EXPECT_EQ(warnings(packed), "");
  const std::string place = output / "checkpoint-2";
  arguments.resume_from_checkpoint = place;
  EXPECT_EQ(warnings(packed), "");
  nlohmann::json more = packed;  // from a version that keeps more
  more["train_file_content"] = "sha256:0";
  EXPECT_EQ(warnings(more), "");
  const std::string so =
      ": from sample 16 on this epoch is not the unbroken run's; give what it was, or begin the "
      "epoch anew with --ignore_data_skip true\n";
  nlohmann::json other = packed;
  other["packing"] = false;
  other["packing_strategy"] = nullptr;
  other["block_size"] = 16;
  EXPECT_EQ(warnings(other), "warning: block_size was 12 in " + place + " and is 16 now" + so +
                                 "warning: packing was true in " + place + " and is false now" +
                                 so + "warning: packing_strategy was \"bfd\" in " + place +
                                 " and is null now" + so);
  // The Trainer itself knows these options.
  arguments.data_seed = 7;
  EXPECT_EQ(warnings(packed), "warning: data_seed was 42 in " + place + " and is 7 now" + so);
  arguments.data_seed = 42;
  arguments.group_by_length = true;
  EXPECT_EQ(warnings(packed), "warning: train_sampling_strategy was \"random\" in " + place +
                                  " and is \"group_by_length\" now" + so);
  arguments.group_by_length = false;
  arguments.dataloader_drop_last = true;
  EXPECT_EQ(warnings(packed),
            "warning: dataloader_drop_last was false in " + place + " and is true now" + so);
  arguments.dataloader_drop_last = false;
  options.samples = 42;
  // If an option changed, the message names it and leaves out its consequences.
  EXPECT_THAT(warnings(other), ::testing::Not(HasSubstr("training set")));
  EXPECT_EQ(warnings(packed),
            "warning: the training set had 41 samples in " + place + " and has 42 now" + so);
  // At the beginning of an epoch nothing is skipped; with ignore_data_skip nothing either.
  arguments.resume_from_checkpoint = output / "checkpoint-6";
  arguments.max_steps = 8;
  options.samples = 43;
  EXPECT_THAT(warnings(packed), HasSubstr("42 samples in " + output / "checkpoint-6" +
                                          " and has 43 now: the run will differ"));
  arguments.resume_from_checkpoint = place;
  arguments.max_steps = 6;
  arguments.ignore_data_skip = true;
  EXPECT_EQ(warnings(packed), "warning: the training set had 41 samples in " + place +
                                  " and has 43 now: the run will differ from an unbroken one\n");
  arguments.ignore_data_skip = false;
  // A checkpoint of an older version has only its seed.
  const std::string state = place + "/trainer_state.json";
  auto old = nlohmann::json::parse(std::ifstream(state));
  old["shoal"].erase("data");
  CheckpointTransaction again(output / "old/checkpoint-2", 2);
  for (const auto& entry : std::filesystem::directory_iterator(place))
    if (entry.path().filename() != "COMPLETE")
      std::filesystem::copy(entry.path(), again.directory());
  std::ofstream(again.directory() + "/trainer_state.json") << old;
  again.commit();
  arguments.resume_from_checkpoint = output / "old/checkpoint-2";
  arguments.data_seed = 8;
  EXPECT_EQ(warnings(other),
            "warning: data_seed was 42 in " + output / "old/checkpoint-2" + " and is 8 now" + so);
}

// Commit f990d27 took a position beyond the epoch for its end, without a warning.
TEST(TrainerResume, RefusesAPositionInTheDataThatNoRunReached) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 2;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  run(arguments);
  const std::string saved = output / "checkpoint-2";
  for (const std::int64_t position : {std::int64_t{1} << 62, std::int64_t{1'000'000}}) {
    auto state = nlohmann::json::parse(std::ifstream(saved + "/trainer_state.json"));
    state["shoal"]["data_position"] = position;
    CheckpointTransaction forged(output / (std::to_string(position) + "/checkpoint-2"), 2);
    for (const auto& entry : std::filesystem::directory_iterator(saved))
      if (entry.path().filename() != "COMPLETE")
        std::filesystem::copy(entry.path(), forged.directory());
    std::ofstream(forged.directory() + "/trainer_state.json") << state;
    forged.commit();
    arguments.resume_from_checkpoint = output / (std::to_string(position) + "/checkpoint-2");
    EXPECT_THAT(error_of(arguments),
                HasSubstr(fmt::format("says that the data stand at sample {};", position)));
  }
  arguments.ignore_data_skip = true;
  arguments.max_steps = 3;
  EXPECT_EQ(run(arguments).main.losses.size(), 1U);
}

// The checkpoint's best model was moved with its run, or is gone. The run must report this at its
// start, not at the end of training.
TEST(TrainerResume, LooksForTheBestCheckpoint) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output / "run");
  arguments.max_steps = 8;
  arguments.learning_rate = 0.5;  // the loss increases
  arguments.eval_strategy = arguments.save_strategy = Interval::steps;
  arguments.eval_steps = arguments.save_steps = 2;
  arguments.load_best_model_at_end = true;
  RunOptions options{.ranks = 2, .eval_samples = 7, .stop_after = 4};
  run(arguments, options);
  std::filesystem::rename(output / "run", output / "moved");
  options.stop_after = -1;
  arguments.output_dir = output / "moved";
  arguments.resume_from_checkpoint = output / "moved/checkpoint-4";
  EXPECT_THAT(run(arguments, options).main.messages,
              HasSubstr("loaded the best model, " + (output / "moved/checkpoint-2")));
  std::filesystem::remove_all(output / "moved/checkpoint-2");
  const std::string messages = run(arguments, options).main.messages;
  EXPECT_THAT(messages, HasSubstr("run/checkpoint-2, is not there any more"));
  EXPECT_THAT(messages,
              ::testing::ContainsRegex("loaded the best model, .*/moved/checkpoint-[68]"));
}

TEST(TrainerStop, TimeThatIsOverSavesUnlessNothingIsSaved) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_train_minutes = 1e-9;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 20;
  const auto saved = run(arguments);
  EXPECT_EQ(saved.main.losses.size(), 1U);
  EXPECT_EQ(saved.main.saves, (std::vector<std::int64_t>{1}));
  EXPECT_THAT(saved.main.messages, HasSubstr("stopping at step 1 of 50: max_train_minutes"));
  EXPECT_EQ(saved.result.stop_signal, 0);
  arguments.output_dir = output / "other";
  arguments.save_strategy = Interval::no;
  EXPECT_THAT(run(arguments).main.saves, ::testing::IsEmpty());
}

TEST(TrainerCheckpoints, AreRotated) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 10;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  arguments.save_total_limit = 2;
  run(arguments);
  const auto left = list_checkpoints(output.path());
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[0].step, 8);
  EXPECT_EQ(left[1].step, 10);
}

// A run that resumes from an earlier step writes lower numbers than the run that it replaces.
TEST(TrainerCheckpoints, RotationNeverTakesTheOneJustWritten) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 10;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  run(arguments);
  std::filesystem::create_directory(output / "tmp-checkpoint-9.0");
  arguments.save_total_limit = 1;
  arguments.max_steps = 6;
  arguments.resume_from_checkpoint = output / "checkpoint-2";
  const auto back = run(arguments);
  EXPECT_THAT(back.main.messages, HasSubstr("checkpoint-10 is of a later step"));
  EXPECT_EQ(back.result.last_checkpoint, output / "checkpoint-6");
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-6", true), std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(output / "tmp-checkpoint-9.0"));
}

// The kernel refuses bytes beyond RLIMIT_FSIZE as it refuses them on a full disk.
TEST(TrainerCheckpoints, AFullDiskEndsTheRunAndLeavesEarlierOnes) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 2;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  run(arguments);
  arguments.max_steps = 20;
  arguments.resume_from_checkpoint = "true";
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1 << 14, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string text = error_of(arguments);
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(text, HasSubstr("model.safetensors"));
  ASSERT_EQ(list_checkpoints(output.path()).size(), 1U);
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-2", true), std::nullopt);
}

TEST(TrainerStop, OneRanksSignalStopsAllWithACheckpoint) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.per_device_train_batch_size = 4;
  const auto stopped = run(arguments, {.ranks = 2, .signal_after = 10});
  EXPECT_EQ(stopped.result.stop_signal, 15);  // although rank 0 received none
  // The signal arrives at the end of step 10, so no further step begins.
  EXPECT_EQ(stopped.result.global_step, 10);
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-10", true), std::nullopt);
  EXPECT_EQ(stopped.result.last_checkpoint, output / "checkpoint-10");
  // The batches already drawn for step 11 are not lost.
  arguments.resume_from_checkpoint = "true";
  const auto rest = run(arguments, {.ranks = 2});
  arguments.resume_from_checkpoint = "false";
  arguments.output_dir = output / "whole";
  const auto whole = run(arguments, {.ranks = 2});
  EXPECT_EQ(rest.main.losses,
            std::vector<double>(whole.main.losses.begin() + 10, whole.main.losses.end()));
}

TEST(TrainerStop, ACheckpointOfTheSameStepIsNotWrittenAgain) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 5;
  const auto stopped = run(arguments, {.signal_after = 10});
  EXPECT_EQ(stopped.main.saves, (std::vector<std::int64_t>{5, 10}));
  EXPECT_EQ(stopped.result.last_checkpoint, output / "checkpoint-10");
}

// Another run's checkpoint with a higher number is not the last checkpoint of this run.
TEST(TrainerStop, TheLastCheckpointIsThisRuns) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 6;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 3;
  run(arguments);
  arguments.resume_from_checkpoint = output / "checkpoint-3";
  const auto stopped = run(arguments, {.signal_after = 4});
  EXPECT_EQ(stopped.result.last_checkpoint, output / "checkpoint-4");
}

}  // namespace
}  // namespace shoal
