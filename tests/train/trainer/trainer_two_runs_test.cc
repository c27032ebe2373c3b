// Two runs in one output_dir. The second is refused by name before it changes anything. A run that
// lost the directory to another writes nothing more.
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::bytes_of;
using test::error_of;
using test::errors_of;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TemporaryDirectory;

class AtStep final : public TrainerCallback {
 public:
  AtStep(std::int64_t step, std::function<void()> action)
      : step_(step), action_(std::move(action)) {}
  void on_step_end(const StepReport& report, TrainerControl&) override {
    if (report.step == step_) action_();
  }

 private:
  std::int64_t step_;
  std::function<void()> action_;
};

class TwoRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    arguments = toy_arguments(output.path());
    arguments.max_steps = 4;
    arguments.logging_steps = 1;
    arguments.save_strategy = Interval::steps;
    arguments.save_steps = 2;
  }
  // The first run, which calls at_step at the end of rank 0's third step.
  RunOptions acting(AtStep& at_step) const {
    RunOptions options;
    options.prepare = [&](CausalLmTask&, TrainerParts& parts) {
      if (parts.communicator->rank() == 0) parts.callbacks.push_back(&at_step);
    };
    return options;
  }

  TemporaryDirectory output;
  TrainingArguments arguments;
};

TEST_F(TwoRuns, TheSecondIsRefusedAndChangesNothing) {
  TrainingArguments second = arguments;
  second.overwrite_output_dir = true;  // this option would remove the most
  const std::string unfinished = output / "tmp-checkpoint-9.0/model.safetensors";
  AtStep at_step(3, [&] {
    fs::create_directories(output / "tmp-checkpoint-9.0");
    std::ofstream(unfinished) << "being written";
    const std::string metrics = bytes_of(output / "metrics.jsonl");
    for (const int ranks : {1, 2})
      EXPECT_THAT(errors_of(second, {.ranks = ranks}),
                  AllOf(Each(Not(IsEmpty())), Each(HasSubstr(" is in use by process "))));
    EXPECT_EQ(bytes_of(output / "metrics.jsonl"), metrics);
    EXPECT_EQ(bytes_of(unfinished), "being written");
  });
  EXPECT_EQ(run(arguments, acting(at_step)).result.global_step, 4);
  EXPECT_TRUE(fs::exists(output / "checkpoint-2/COMPLETE"));
  EXPECT_TRUE(fs::exists(output / "checkpoint-4/COMPLETE"));
  EXPECT_FALSE(fs::exists(output / "run.lock"));
  EXPECT_EQ(error_of(second), "no error");  // the first has ended
}

TEST_F(TwoRuns, ARunThatLostItsDirectoryCommitsNothingThere) {
  arguments.save_steps = 4;  // no save is in progress when the lock is lost
  for (const bool in_parts : {false, true}) {
    AtStep at_step(3, [&] {
      fs::remove(output / "run.lock");
      std::ofstream(output / "run.lock")
          << R"({"host": "far-away", "pid": 4711, "token": "theirs", "since": "noon"})";
    });
    RunOptions options = acting(at_step);
    if (in_parts) {
      options.ranks = 2;
      arguments.mp_parameters = {{"sharded_data_parallel_degree", 2}, {"ddp", true}};
    }
    EXPECT_THAT(error_of(arguments, options),
                HasSubstr("was taken over by process 4711 on far-away since noon"))
        << in_parts;
    EXPECT_FALSE(fs::exists(output / "checkpoint-4")) << in_parts;
    EXPECT_THAT(bytes_of(output / "run.lock"), HasSubstr("theirs"));
    fs::remove(output / "run.lock");
  }
}

// A writer died while it replaced the only complete checkpoint by another of the same step.
TEST_F(TwoRuns, ABeginningRunRemovesNoCheckpointThatWasSetAside) {
  run(arguments, {});
  fs::remove_all(output / "checkpoint-2");
  fs::rename(output / "checkpoint-4", output / "tmp-checkpoint-4.0.replaced");
  EXPECT_THAT(error_of(arguments), HasSubstr("holds 1 checkpoint already"));
  EXPECT_TRUE(fs::exists(output / "checkpoint-4/COMPLETE"));
}

// The model, the results and the predictions are written after the last step. The lock covers them.
TEST_F(TwoRuns, TheSecondIsRefusedUntilTheFirstHasWrittenEverything) {
  TrainingArguments second = arguments;
  second.overwrite_output_dir = true;
  RunOptions options{.eval_samples = 5, .save_model_to = output.path()};
  options.after = [&](Trainer& trainer, int) {
    EXPECT_THAT(error_of(second), HasSubstr(" is in use by process "));
    trainer.check_output_dir();
    trainer.evaluate();
    EXPECT_THAT(error_of(second), HasSubstr(" is in use by process "));
  };
  run(arguments, options);
  EXPECT_FALSE(fs::exists(output / "run.lock"));
  EXPECT_EQ(error_of(second), "no error");
}

// No checkpoint remains to be written, so only the end of the run checks the lock.
TEST_F(TwoRuns, ARunThatLostItsDirectoryWritesNothingThere) {
  arguments.save_strategy = Interval::no;
  const auto lose = [&] {
    fs::remove(output / "run.lock");
    std::ofstream(output / "run.lock")
        << R"({"host": "far-away", "pid": 4711, "token": "theirs", "since": "noon"})";
    std::ofstream(output / "metrics.jsonl") << "theirs";
    std::ofstream(output / "model.safetensors") << "theirs";
  };
  const auto expect_nothing_was_touched = [&](const std::string& said) {
    EXPECT_THAT(said, HasSubstr("was taken over by process 4711 on far-away since noon"));
    EXPECT_EQ(bytes_of(output / "metrics.jsonl"), "theirs");
    EXPECT_EQ(bytes_of(output / "model.safetensors"), "theirs");
    EXPECT_FALSE(fs::exists(output / "config.json"));
    fs::remove(output / "run.lock");
  };
  AtStep at_step(3, lose);
  RunOptions options = acting(at_step);
  options.save_model_to = output.path();
  expect_nothing_was_touched(error_of(arguments, options));  // the third step's metrics

  RunOptions later{.eval_samples = 5};
  for (const auto& action : std::vector<std::function<void(Trainer&)>>{
           [](Trainer& trainer) { trainer.check_output_dir(); },
           [](Trainer& trainer) { trainer.evaluate(); },
           [&](Trainer& trainer) { trainer.save_model(output.path()); }}) {
    later.after = [&](Trainer& trainer, int) {
      lose();
      action(trainer);
    };
    expect_nothing_was_touched(error_of(arguments, later));
  }
}

TEST_F(TwoRuns, ARunThatFailsLeavesNoLock) {
  EXPECT_THAT(error_of(arguments, {.fail_after = 3}), HasSubstr("the test's own failure"));
  EXPECT_FALSE(fs::exists(output / "run.lock"));
}

}  // namespace
}  // namespace shoal
