// Updates that overlap the next forward pass.
#include <cmath>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

using test::bytes_of;
using test::errors_of;
using test::expect_resume_to_the_bit;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// Overlapped updates have the same bits as updates that wait for all gradients.
TEST(TrainerEarlyForward, ChangesNoBit) {
  const TemporaryDirectory output;
  struct Case {
    const char* name;
    int ranks;
    std::function<void(TrainingArguments&)> change;
  };
  const std::vector<Case> cases = {
      {"one", 1, {}},
      {"two", 2, {}},
      {"four", 4, {}},
      {"accumulation", 2, [](auto& a) { a.gradient_accumulation_steps = 3; }},
      {"bf16", 2, [](auto& a) { a.bf16 = true; }},
      {"lamb", 2, [](auto& a) { a.optim = "lamb"; }},
      {"lion", 2, [](auto& a) { a.optim = "lion"; }},
      {"adafactor", 2, [](auto& a) { a.optim = "adafactor"; }},
      {"checkpointing", 2, [](auto& a) { a.gradient_checkpointing = true; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    auto arguments = toy_arguments(output / fmt::format("{}-early", c.name));
    arguments.per_device_train_batch_size = 2;
    arguments.max_steps = 30;
    arguments.max_grad_norm = 0;
    arguments.ddp_bucket_cap_mb = 0.01;  // several buckets
    arguments.ddp_first_bucket_cap_mb = 0.001;
    arguments.eval_strategy = arguments.save_strategy = Interval::steps;
    arguments.eval_steps = 11;
    arguments.save_steps = 12;
    if (c.change) c.change(arguments);
    EXPECT_EQ(arguments.overlaps_forward(c.ranks), c.ranks > 1);
    const RunOptions options{.ranks = c.ranks, .eval_samples = 10};
    const auto early = run(arguments, options);
    arguments.ddp_overlap_forward = false;
    arguments.output_dir = output / fmt::format("{}-late", c.name);
    const auto late = run(arguments, options);
    ASSERT_EQ(late.main.losses.size(), 30U);
    EXPECT_EQ(early.main.losses, late.main.losses);
    EXPECT_EQ(early.main.logs.size(), late.main.logs.size());
    for (std::size_t i = 0; i < late.main.evaluations.size(); ++i)
      EXPECT_EQ(early.main.evaluations[i]["eval_loss"], late.main.evaluations[i]["eval_loss"]);
    ASSERT_EQ(late.main.evaluations.size(), 3U);  // steps 11, 22 and the last one
    for (std::size_t i = 0; i < 30; ++i) {
      const auto step = i + 1;
      // Steps that log (7), evaluate or save wait for all updates. The others do not know their
      // norm.
      const bool waits = step % 7 == 0 || step % 11 == 0 || step % 12 == 0 || step == 30;
      if (waits || c.ranks == 1) {
        EXPECT_EQ(early.main.norms[i], late.main.norms[i]) << step;
      } else {
        EXPECT_TRUE(std::isnan(early.main.norms[i])) << step;
      }
    }
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "trainer_state.json"})
      for (const int step : {12, 24, 30})
        EXPECT_EQ(bytes_of(output / fmt::format("{}-early/checkpoint-{}/{}", c.name, step, file)),
                  bytes_of(output / fmt::format("{}-late/checkpoint-{}/{}", c.name, step, file)))
            << file << " of step " << step;
  }
}

TEST(TrainerEarlyForward, WaitsIfAStepNeedsAllGradients) {
  auto arguments = toy_arguments("");
  EXPECT_FALSE(arguments.overlaps_forward(2));  // because the run clips gradients
  arguments.max_grad_norm = 0;
  EXPECT_TRUE(arguments.overlaps_forward(2));
  EXPECT_FALSE(arguments.overlaps_forward(1));
  arguments.fp16 = true;
  EXPECT_FALSE(arguments.overlaps_forward(2));
}

// If the gradients of one rank are not finite, no rank applies the step.
TEST(TrainerEarlyForward, LeavesOutWholeStepsThatAreNotFinite) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output / "early");
  arguments.max_steps = 12;
  arguments.max_grad_norm = 0;
  arguments.optim = "sgd";
  arguments.learning_rate = 1e30;  // the second step's activations overflow
  arguments.warmup_steps = 0;
  arguments.weight_decay = 0;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 6;
  const auto early = run(arguments, {.ranks = 2});
  arguments.ddp_overlap_forward = false;
  arguments.output_dir = output / "late";
  const auto late = run(arguments, {.ranks = 2});
  EXPECT_THAT(early.main.messages, HasSubstr("is not finite; such steps change nothing"));
  EXPECT_EQ(early.main.messages, late.main.messages);
  for (const int step : {6, 12})
    EXPECT_EQ(bytes_of(output / fmt::format("early/checkpoint-{}/model.safetensors", step)),
              bytes_of(output / fmt::format("late/checkpoint-{}/model.safetensors", step)));
}

TEST(TrainerEarlyForward, ResumesToTheBit) {
  auto arguments = toy_arguments("");
  arguments.max_grad_norm = 0;
  arguments.per_device_train_batch_size = 2;
  arguments.gradient_accumulation_steps = 2;
  expect_resume_to_the_bit(arguments, {.ranks = 2});
}

// A rank ends while gradients are in flight. The other ranks' forward pass names it.
TEST(TrainerEarlyForward, NamesTheRankThatFailed) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_grad_norm = 0;
  RunOptions options{.ranks = 3};
  options.fail_after = 4;
  const auto errors = errors_of(arguments, options);
  ASSERT_EQ(errors.size(), 3U);
  EXPECT_THAT(errors[2], HasSubstr("the test's own failure"));
  for (const int rank : {0, 1})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr("rank 2")) << rank;
}

}  // namespace
}  // namespace shoal
