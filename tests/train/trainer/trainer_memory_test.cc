// Runs with a memory limit. A fitting batch size is found before training; if none fits,
// the error is one line.
#include <algorithm>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/runtime/memory/mebibytes.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"

namespace shoal {
namespace {

using test::bytes_of;
using test::error_of;
using test::errors_of;
using test::Outcome;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

constexpr std::int64_t kFits = 5;

TrainingArguments arguments_of(const std::string& output, std::int64_t batch) {
  auto arguments = toy_arguments(output);
  arguments.max_steps = 4;
  arguments.per_device_train_batch_size = batch;
  return arguments;
}

// The highest memory use of any rank that trains with this batch size.
std::int64_t peak_of(std::int64_t batch, const RunOptions& options) {
  const TemporaryDirectory output;
  return std::ranges::max(run(arguments_of(output.path(), batch), options).memory_peaks);
}

// Limits the last rank to `bytes`; the others have no limit.
RunOptions limited(RunOptions options, std::int64_t bytes) {
  options.memory_limit = [last = options.ranks - 1, bytes](int rank) {
    return rank == last ? bytes : INT64_MAX;
  };
  return options;
}

struct Found {
  std::int64_t batch = 0, parameters = 0;
  Outcome outcome;
};

// The search begins at 8 samples.
Found find(TrainingArguments arguments, RunOptions options) {
  Found found;
  arguments.per_device_train_batch_size = 8;
  arguments.auto_find_batch_size = true;
  options.after = [&](Trainer& trainer, int rank) {
    if (rank != 0) return;
    found.batch = trainer.state().train_batch_size;
    found.parameters = trainer.parameter_count();
  };
  found.outcome = run(arguments, options);
  return found;
}

bool same_bytes(const std::string& a, const std::string& b) { return bytes_of(a) == bytes_of(b); }

class FindsBatchSize : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FindsBatchSize, ::testing::Values(1, 2));

// One rank's limit decides for all, and the run has the same bits as one with that batch size
// given.
TEST_P(FindsBatchSize, AndTrainsAsIfItHadBeenGiven) {
  const TemporaryDirectory output;
  const RunOptions options{.ranks = GetParam()};
  RunOptions tight = limited(options, peak_of(kFits, options));
  tight.save_model_to = output / "found";
  const Found found = find(arguments_of(output / "found", 8), tight);
  // The free memory that a try must leave, and scratch memory of earlier tries, may
  // cost one sample each.
  EXPECT_GE(found.batch, kFits - 2);
  EXPECT_LE(found.batch, kFits);
  EXPECT_THAT(found.outcome.main.messages,
              AllOf(HasSubstr("8 samples a device do not fit (host memory: no room for "),
                    HasSubstr("MiB are available (the test's)); trying 7\n"),
                    HasSubstr(fmt::format("; trying {}\n", found.batch)),
                    Not(HasSubstr(fmt::format("; trying {}\n", found.batch - 1))),
                    HasSubstr(fmt::format(
                        "auto_find_batch_size: per_device_train_batch_size is {} instead of 8\n",
                        found.batch))));

  RunOptions as_given = options;
  as_given.save_model_to = output / "given";
  const Outcome given = run(arguments_of(output / "given", found.batch), as_given);
  ASSERT_EQ(given.main.losses.size(), 4U);
  EXPECT_EQ(found.outcome.main.losses, given.main.losses);
  EXPECT_EQ(found.outcome.main.norms, given.main.norms);
  EXPECT_TRUE(same_bytes(output / "found/model.safetensors", output / "given/model.safetensors"));
}

// A checkpoint is written from a copy, which exists during the next step.
TEST(FindBatchSize, LeavesMemoryForCheckpoints) {
  const TemporaryDirectory output;
  const std::int64_t enough = peak_of(kFits, {});
  const Found without = find(arguments_of(output / "none", 8), limited({}, enough));
  auto saving = arguments_of(output / "found", 8);
  saving.save_strategy = Interval::steps;
  saving.save_steps = 4;
  const std::int64_t copy = 3 * 4 * without.parameters;  // masters and AdamW's moments, f32
  const Found with = find(saving, limited({}, enough + copy));
  EXPECT_EQ(with.batch, without.batch);

  saving.output_dir = output / "given";
  saving.per_device_train_batch_size = with.batch;
  run(saving);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "trainer_state.json"})
    EXPECT_TRUE(
        same_bytes(output / "given/checkpoint-4/" + file, output / "found/checkpoint-4/" + file))
        << file;
  // With checkpoints, fewer samples fit into the same memory.
  saving.output_dir = output / "less";
  EXPECT_LT(find(saving, limited({}, enough + copy * 3 / 4)).batch, without.batch);
}

// A resumed run keeps its checkpoint's batch size, whatever would fit now.
TEST(FindBatchSize, OnceForARunThatIsContinued) {
  const TemporaryDirectory output;
  auto arguments = arguments_of(output.path(), kFits);
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 1;
  RunOptions options{.stop_after = 2};
  run(arguments, options);
  arguments.per_device_train_batch_size = 8;
  arguments.auto_find_batch_size = true;
  arguments.resume_from_checkpoint = "true";
  const Outcome rest = run(arguments);
  EXPECT_EQ(rest.main.losses.size(), 2U);
  EXPECT_THAT(rest.main.messages,
              AllOf(HasSubstr("is 5 instead of 8"), Not(HasSubstr("do not fit")),
                    Not(HasSubstr("the global batch was"))));
}

// Padding makes every row as long as the longest sample, wherever that one is.
TEST(FindBatchSize, ForTheLongestSample) {
  class OneLong final : public Dataset {
   public:
    explicit OneLong(std::shared_ptr<const Dataset> all) : all_(std::move(all)) {}
    std::int64_t size() const override { return all_->size(); }
    Sample get(std::int64_t index) const override {
      Sample sample = all_->get(index);
      if (index == 29) return sample;
      sample.input_ids.resize(3);
      sample.labels.resize(3);
      return sample;
    }

   private:
    std::shared_ptr<const Dataset> all_;
  };
  const TemporaryDirectory output;
  RunOptions options = limited({}, peak_of(kFits, {}));
  const std::int64_t of_long = find(arguments_of(output / "long", 8), options).batch;
  options.prepare = [](CausalLmTask&, TrainerParts& parts) {
    parts.train_dataset = std::make_shared<OneLong>(parts.train_dataset);
  };
  auto arguments = arguments_of(output / "one", 8);
  arguments.max_steps = 14;  // one epoch, so the long sample is included
  EXPECT_EQ(find(arguments, options).batch, of_long);
}

TEST_P(FindsBatchSize, SaysWhenNoneFits) {
  const TemporaryDirectory output;
  const RunOptions options{.ranks = GetParam()};
  auto arguments = arguments_of(output.path(), 2);
  arguments.auto_find_batch_size = true;
  const auto errors = errors_of(arguments, limited(options, peak_of(1, options) - 1));
  for (const std::string& error : errors)
    EXPECT_THAT(error, AllOf(HasSubstr("not even per_device_train_batch_size 1 fits: host memory: "
                                       "no room for "),
                             HasSubstr("gradient_checkpointing")));
  EXPECT_THAT(errors.at(0), Not(HasSubstr("aborted")));
}

TEST(OutOfMemory, IsOneLineWithTheNumbersAndWhatHelps) {
  const TemporaryDirectory output;
  const std::int64_t enough = peak_of(kFits, {});
  auto arguments = arguments_of(output.path(), 8);
  EXPECT_THAT(
      error_of(arguments, limited({}, enough)),
      AllOf(
          HasSubstr("host memory: no room for "), HasSubstr("MiB of activations: "),
          HasSubstr(fmt::format(" of {} are available (the test's); held are ", mebibytes(enough))),
          HasSubstr("; use a per_device_train_batch_size below 8 with more "
                    "gradient_accumulation_steps, auto_find_batch_size, "
                    "gradient_checkpointing, activation_offloading, a smaller block_size")));
  // All ranks end, and the rank without memory reports the reason.
  const auto errors = errors_of(arguments, limited({.ranks = 2}, enough));
  EXPECT_THAT(errors.at(1), HasSubstr("MiB are available (the test's)"));
  EXPECT_THAT(errors.at(0), HasSubstr("host memory: no room for"));

  arguments.per_device_train_batch_size = 2;
  arguments.per_device_eval_batch_size = 500;
  RunOptions evaluates = limited({.eval_samples = 500}, enough);
  evaluates.after = [](Trainer& trainer, int) { trainer.evaluate(); };
  EXPECT_THAT(error_of(arguments, evaluates), HasSubstr("a per_device_eval_batch_size below 500"));
}

}  // namespace
}  // namespace shoal
