// A run that cannot read its checkpoints ends with the reason. It never starts over in their
// directory.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/failing_path.h"
#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/train/checkpoint/checkpoint_directory.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::bytes_of;
using test::error_of;
using test::errors_of;
using test::FailingPath;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// A run with checkpoint-2 and checkpoint-4, and the files that a failed resume must leave
// untouched.
class ResumeErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    arguments = toy_arguments(output.path());
    arguments.max_steps = 4;
    arguments.logging_steps = 1;
    arguments.save_strategy = Interval::steps;
    arguments.save_steps = 2;
    run(arguments);
    metrics = bytes_of(output / "metrics.jsonl");
    model = bytes_of(output / "checkpoint-4/model.safetensors");
    arguments.resume_from_checkpoint = "true";
    arguments.max_steps = 6;
  }
  void expect_nothing_was_touched() const {
    EXPECT_EQ(bytes_of(output / "metrics.jsonl"), metrics);
    EXPECT_EQ(bytes_of(output / "checkpoint-4/model.safetensors"), model);
    EXPECT_FALSE(fs::exists(output / "checkpoint-6"));
  }

  TemporaryDirectory output;
  TrainingArguments arguments;
  std::string metrics, model;
};

TEST_F(ResumeErrors, AnErrorIsNotTakenForNoCheckpointOrADamagedOne) {
  for (const int error : {EIO, EACCES, ESTALE})
    for (const char* name :
         {"", "/checkpoint-4", "/checkpoint-4/COMPLETE", "/checkpoint-4/model.safetensors",
          "/checkpoint-4/optimizer.safetensors", "/checkpoint-4/trainer_state.json"}) {
      const std::string path = output.path() + name;
      std::string said;
      {
        const FailingPath broken(path, error);
        said = error_of(arguments);
        EXPECT_GT(broken.calls(), 0) << path;
      }
      EXPECT_THAT(said, AllOf(HasSubstr(path), HasSubstr(std::strerror(error))));
      expect_nothing_was_touched();
    }
  EXPECT_EQ(run(arguments).main.losses.size(), 2U) << "the disk works again";
}

TEST_F(ResumeErrors, ALoopOfLinksIsNotAMissingCheckpoint) {
  fs::create_symlink("checkpoint-9", output / "checkpoint-9");
  EXPECT_THAT(error_of(arguments),
              AllOf(HasSubstr("checkpoint-9"), HasSubstr(std::strerror(ELOOP))));
  expect_nothing_was_touched();
}

// The volume is not mounted, or another program wrote the file. The run reports it, and does not
// treat it as a missing checkpoint.
TEST_F(ResumeErrors, ADanglingLinkOrAFileIsADamagedCheckpoint) {
  const TemporaryDirectory volume;
  fs::rename(output / "checkpoint-4", volume / "checkpoint-4");
  fs::create_symlink(volume / "away", output / "checkpoint-4");
  const auto resumed = run(arguments);  // the resumed run replaces it
  EXPECT_EQ(resumed.main.losses.size(), 4U);
  EXPECT_THAT(resumed.main.messages, HasSubstr("checkpoint-4 is passed over: it is a link to " +
                                               (volume / "away") + ", which is not there"));
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-4", true), std::nullopt);
  for (const char* name : {"checkpoint-2", "checkpoint-4", "checkpoint-6"})
    fs::remove_all(output / name);
  fs::create_symlink(volume / "away", output / "checkpoint-4");
  std::ofstream(output / "checkpoint-2") << "a file";
  const std::string before = bytes_of(output / "metrics.jsonl");
  for (const int ranks : {1, 2})
    EXPECT_THAT(error_of(arguments, {.ranks = ranks}),
                AllOf(HasSubstr("has checkpoints and none is whole"),
                      HasSubstr("checkpoint-4: it is a link to "),
                      HasSubstr("checkpoint-2: it is not a directory")));
  EXPECT_EQ(bytes_of(output / "metrics.jsonl"), before);
  arguments.resume_from_checkpoint = "false";
  EXPECT_THAT(error_of(arguments), HasSubstr("holds 2 checkpoints already"));
  arguments.overwrite_output_dir = true;
  EXPECT_EQ(run(arguments).main.losses.size(), 6U);
  EXPECT_EQ(bytes_of(volume / "checkpoint-4/model.safetensors"), model);
}

TEST_F(ResumeErrors, EachDamagedCheckpointIsNamedIfNoneIsWhole) {
  fs::remove(output / "checkpoint-4/COMPLETE");
  fs::resize_file(output / "checkpoint-2/model.safetensors", 100);
  for (const int ranks : {1, 2})
    EXPECT_THAT(
        error_of(arguments, {.ranks = ranks}),
        AllOf(HasSubstr(output.path() + " has checkpoints and none is whole"),
              HasSubstr("checkpoint-4: it has no COMPLETE marker"),
              HasSubstr("checkpoint-2: model.safetensors has 100 bytes instead of"),
              HasSubstr("; bring the missing files back, or begin at step 0 and remove these with "
                        "--overwrite_output_dir true")));
  expect_nothing_was_touched();
  arguments.overwrite_output_dir = true;
  const auto begun = run(arguments);
  EXPECT_EQ(begun.main.losses.size(), 6U);
  EXPECT_THAT(begun.main.messages, AllOf(HasSubstr("checkpoint-4 is passed over"),
                                         HasSubstr("training begins at step 0")));
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-6", true), std::nullopt);
}

// Each rank reaches the same files by a path of its own, and one path fails.
TEST_F(ResumeErrors, OnOneRankEndEveryRankWithTheReason) {
  const TemporaryDirectory links;
  RunOptions options{.ranks = 2};
  options.arguments_of = [&](int rank) {
    TrainingArguments own = arguments;
    own.output_dir = links / std::to_string(rank);
    return own;
  };
  for (const int rank : {0, 1}) fs::create_symlink(output.path(), links / std::to_string(rank));
  for (const int rank : {0, 1})
    for (const char* name : {"", "/checkpoint-4/COMPLETE", "/checkpoint-4/model.safetensors"}) {
      const std::string path = links / std::to_string(rank) + name;
      const FailingPath broken(path, EIO);
      EXPECT_THAT(errors_of(arguments, options),
                  Each(AllOf(HasSubstr(path), HasSubstr(std::strerror(EIO)))));
      expect_nothing_was_touched();
    }
}

TEST_F(ResumeErrors, InCleaningUpDoNotEndTheRun) {
  fs::create_directory(output / "tmp-checkpoint-4.0");
  for (const char* name : {"", "/file"}) {
    std::ofstream(output / "tmp-checkpoint-4.0/file") << "of a killed writer";
    {
      const FailingPath broken(output / "tmp-checkpoint-4.0" + name, EIO);
      EXPECT_EQ(error_of(arguments), "no error") << name;
      EXPECT_GT(broken.calls(), 0) << name;
    }
    EXPECT_EQ(checkpoint_problem(output / "checkpoint-6", true), std::nullopt);
    EXPECT_TRUE(fs::exists(output / "tmp-checkpoint-4.0"));
  }
}

// If a checkpoint cannot be removed, rotation continues. A checkpoint that must be
// overwritten ends the run.
TEST_F(ResumeErrors, InOverwritingEndTheRunButInRotationDoNot) {
  arguments.save_total_limit = 1;
  {
    const FailingPath broken(output / "checkpoint-2/COMPLETE", EIO);
    arguments.resume_from_checkpoint = output / "checkpoint-4";
    EXPECT_EQ(error_of(arguments), "no error");
    EXPECT_EQ(checkpoint_problem(output / "checkpoint-6", true), std::nullopt);
  }
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-2", true), std::nullopt);
  arguments.resume_from_checkpoint = "false";
  arguments.overwrite_output_dir = true;
  const FailingPath broken(output.path(), EIO);
  EXPECT_THAT(error_of(arguments), HasSubstr(std::strerror(EIO)));
}

}  // namespace
}  // namespace shoal
