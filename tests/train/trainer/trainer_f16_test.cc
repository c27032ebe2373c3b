// Training in f16: the loss scale changes as torch.amp.GradScaler changes it, in every layout.
#include <cmath>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/train/checkpoint/checkpoint_directory.h"

namespace shoal {
namespace {

using test::error_of;
using test::expect_close;
using test::expect_resume_to_the_bit;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

constexpr double kTooLarge = 1 << 26;  // the first gradients of logits overflow

TrainingArguments f16_arguments(const std::string& output) {
  auto arguments = toy_arguments(output);
  arguments.fp16 = true;
  arguments.max_steps = 16;
  arguments.logging_steps = 1;
  arguments.logging_nan_inf_filter = false;
  arguments.grad_scaler_init_scale = kTooLarge;
  arguments.grad_scaler_growth_interval = 6;
  return arguments;
}

// The scale logged after each step follows from the step's gradients and the previous scale.
int expect_scale_follows(const test::Outcome& outcome, std::size_t steps) {
  EXPECT_EQ(outcome.main.norms.size(), steps);
  EXPECT_EQ(outcome.main.logs.size(), steps + 1) << "and the summary";
  double scale = kTooLarge;
  int good = 0, skipped = 0;
  for (std::size_t i = 0; i < steps && i < outcome.main.norms.size(); ++i) {
    if (!std::isfinite(outcome.main.norms[i])) {
      scale /= 2;
      good = 0;
      ++skipped;
    } else if (++good % 6 == 0) {
      scale *= 2;
    }
    EXPECT_EQ(outcome.main.logs[i]["loss_scale"], scale) << "step " << i + 1;
    EXPECT_TRUE(std::isfinite(outcome.main.losses[i]));
  }
  return skipped;
}

TEST(TrainerF16, OverflowsAreSkippedAndTheScaleFollows) {
  const TemporaryDirectory output;
  const auto outcome = run(f16_arguments(output.path()));
  const int skipped = expect_scale_follows(outcome, 16);
  EXPECT_GE(skipped, 1);
  EXPECT_LE(skipped, 10);
  // A skipped step uses no learning rate: the next step has the same one.
  const auto rate = [&](std::size_t i) {
    return outcome.main.logs[i]["learning_rate"].get<double>();
  };
  EXPECT_EQ(rate(0), rate(1));
  EXPECT_LT(rate(1), rate(static_cast<std::size_t>(skipped) + 1));
  // Compared with f32 from the first step that is not skipped.
  auto plain = toy_arguments(output.path());
  plain.max_steps = 16;
  const auto f32 = run(plain);
  EXPECT_NEAR(outcome.main.losses[0], f32.main.losses[0], 3e-3);
  EXPECT_NEAR(outcome.main.losses.back(), f32.main.losses.back(), 0.1);
}

TEST(TrainerF16, RanksAccumulationAndMeshesAgree) {
  const TemporaryDirectory output;
  const RunOptions options{.samples = 48};
  const auto with = [&](int ranks, std::int64_t batch, std::int64_t accumulated,
                        const nlohmann::json& mesh) {
    auto arguments = f16_arguments(output / "run");
    arguments.per_device_train_batch_size = batch;
    arguments.gradient_accumulation_steps = accumulated;
    arguments.mp_parameters = mesh;
    RunOptions own = options;
    own.ranks = ranks;
    return run(arguments, own);
  };
  const auto one = with(1, 8, 1, {});
  expect_scale_follows(one, 16);
  for (const auto& other :
       {with(2, 4, 1, {}), with(1, 4, 2, {}),
        with(2, 8, 1, {{"pipeline_parallel_degree", 2}, {"microbatches", 2}})}) {
    expect_scale_follows(other, 16);
    expect_close(one.main.losses, other.main.losses, 5e-3);
  }
}

// Resumes at two points: while steps still overflow, and in the middle of a growth window.
TEST(TrainerF16, ResumesToTheBitAmidOverflows) {
  for (const double scale : {kTooLarge, 65536.0}) {
    auto arguments = f16_arguments("");
    arguments.grad_scaler_init_scale = scale;
    arguments.max_steps = 50;
    arguments.gradient_accumulation_steps = 2;
    expect_resume_to_the_bit(arguments, {});
  }
}

// The run resumes in the middle of a growth window.
TEST(TrainerF16, AMeshResumesWithItsScale) {
  const TemporaryDirectory output;
  auto arguments = f16_arguments(output / "whole");
  arguments.per_device_train_batch_size = 8;
  arguments.mp_parameters = {{"pipeline_parallel_degree", 2}, {"microbatches", 2}};
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 8;
  RunOptions options{.samples = 48};
  options.ranks = 2;
  const auto whole = run(arguments, options);
  arguments.output_dir = output / "broken";
  RunOptions stopped = options;
  stopped.stop_after = 8;
  run(arguments, stopped);
  arguments.resume_from_checkpoint = "true";
  const auto rest = run(arguments, options);
  EXPECT_EQ(rest.main.losses,
            std::vector<double>(whole.main.losses.begin() + 8, whole.main.losses.end()));
  ASSERT_GE(rest.main.logs.size(), 8U);
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_EQ(rest.main.logs[i]["loss_scale"], whole.main.logs[i + 8]["loss_scale"]) << i;
}

TEST(TrainerF16, ClipsWhatIsNotScaled) {
  const TemporaryDirectory output;
  auto arguments = f16_arguments(output.path());
  arguments.max_steps = 6;
  arguments.grad_scaler_init_scale = 1024;
  arguments.max_grad_norm = 0.05;  // below every step's norm
  const auto small = run(arguments);
  arguments.grad_scaler_init_scale = 4096;
  const auto large = run(arguments);
  for (const double norm : small.main.norms) EXPECT_LT(norm, 20);
  expect_close(small.main.norms, large.main.norms, 1e-2);
  expect_close(small.main.losses, large.main.losses, 1e-3);
}

TEST(TrainerF16, ARunThatOnlyOverflowsIsEnded) {
  const TemporaryDirectory output;
  auto arguments = f16_arguments(output.path());
  arguments.max_steps = 60;
  arguments.learning_rate = 1e9;
  arguments.warmup_steps = 0;
  arguments.max_grad_norm = 0;
  arguments.grad_scaler_growth_interval = 3;
  EXPECT_THAT(error_of(arguments), HasSubstr("times in a row at the smallest loss scale 1"));
}

}  // namespace
}  // namespace shoal
