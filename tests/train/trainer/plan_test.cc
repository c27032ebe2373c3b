#include "shoal/train/trainer/plan.h"

#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

TEST(Plan, EpochsCountPartialUpdates) {
  TrainingArguments a;
  a.gradient_accumulation_steps = 4;
  a.num_train_epochs = 2;
  const StepPlan plan = plan_steps(a, 10, 2);
  EXPECT_EQ(plan.updates_per_epoch, 3);
  EXPECT_EQ(plan.total_steps, 6);
  EXPECT_EQ(plan.global_batch, 8 * 4 * 2);
}

TEST(Plan, FractionsOfAnEpochRoundUp) {
  TrainingArguments a;
  a.num_train_epochs = 0.25;
  EXPECT_EQ(plan_steps(a, 10, 1).total_steps, 3);
  a.num_train_epochs = 0;
  EXPECT_EQ(plan_steps(a, 10, 1).total_steps, 0);
}

// A cast of such a double was negative, so the run made no step and saved its initial model.
TEST(Plan, RefusesMoreStepsThanItCounts) {
  const auto problem = [](const TrainingArguments& a) -> std::string {
    try {
      plan_steps(a, 35, 1);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  TrainingArguments a;
  for (const double epochs : {3e17, 1e18, 9223372036854775807.0, 1e308}) {
    a.num_train_epochs = epochs;
    EXPECT_THAT(problem(a), testing::HasSubstr(fmt::format("num_train_epochs {:g} is", epochs)));
  }
  a.num_train_epochs = 1e14;
  a.logging_steps = a.save_steps = 1e300;  // never
  a.eval_steps = 1e300;
  const StepPlan plan = plan_steps(a, 35, 1);
  EXPECT_EQ(plan.total_steps, 3'500'000'000'000'000);
  EXPECT_EQ(plan.save_steps, kMostSteps);
  EXPECT_FALSE(plan.save_at(a, 35, true));
  a.warmup_steps = 1e300;
  EXPECT_THAT(problem(a), testing::HasSubstr("warmup_steps 1e+300 is"));
}

TEST(Plan, MaxStepsWinsOverEpochs) {
  TrainingArguments a;
  a.max_steps = 25;
  const StepPlan plan = plan_steps(a, 10, 1);
  EXPECT_EQ(plan.total_steps, 25);
  EXPECT_DOUBLE_EQ(plan.epochs, 2.5);
}

TEST(Plan, StepsBelowOneAreShares) {
  TrainingArguments a;
  a.max_steps = 150;
  a.logging_steps = 0.1;
  a.eval_steps = 0.5;
  a.save_steps = 0.001;
  a.warmup_ratio = 0.06;
  const StepPlan plan = plan_steps(a, 10, 1);
  EXPECT_EQ(plan.logging_steps, 15);
  EXPECT_EQ(plan.eval_steps, 75);
  EXPECT_EQ(plan.save_steps, 1);
  EXPECT_EQ(plan.warmup_steps, 9);
  a.warmup_ratio = 0;
  a.warmup_steps = 7;
  EXPECT_EQ(plan_steps(a, 10, 1).warmup_steps, 7);
}

TEST(Plan, SaysWhenToLogEvaluateAndSave) {
  TrainingArguments a;
  a.max_steps = 25;
  a.logging_steps = 10;
  a.save_steps = 10;
  a.eval_strategy = Interval::epoch;
  const StepPlan plan = plan_steps(a, 10, 1);
  EXPECT_FALSE(plan.log_at(a, 1, false));
  EXPECT_FALSE(plan.log_at(a, 24, false));
  EXPECT_TRUE(plan.log_at(a, 25, false)) << "the last step, whatever the interval";
  EXPECT_TRUE(plan.log_at(a, 20, false));
  EXPECT_FALSE(plan.evaluate_at(a, 20, false));
  EXPECT_TRUE(plan.evaluate_at(a, 11, true));
  EXPECT_TRUE(plan.save_at(a, 25, false));  // the last step, whatever the interval
  EXPECT_FALSE(plan.save_at(a, 24, true));
  a.logging_first_step = true;
  EXPECT_TRUE(plan.log_at(a, 1, false));
  // max_steps cuts the last epoch short. It still counts as an epoch, as in Hugging Face's Trainer.
  EXPECT_TRUE(plan.evaluate_at(a, 25, false));
  a.save_strategy = a.logging_strategy = Interval::epoch;
  a.logging_first_step = false;
  EXPECT_FALSE(plan.save_at(a, 24, false));
  EXPECT_TRUE(plan.save_at(a, 25, false));
  EXPECT_TRUE(plan.log_at(a, 25, false));
  a.save_strategy = Interval::no;
  EXPECT_FALSE(plan.save_at(a, 25, true));
}

TEST(Plan, EvaluatesWhatIsSavedAtTheEnd) {
  TrainingArguments a;
  a.max_steps = 25;
  a.eval_strategy = Interval::steps;
  a.eval_steps = 10;
  const StepPlan plan = plan_steps(a, 10, 1);
  EXPECT_TRUE(plan.evaluate_at(a, 20, false));
  EXPECT_FALSE(plan.evaluate_at(a, 24, true));
  EXPECT_TRUE(plan.evaluate_at(a, 25, false));
  a.eval_delay = 26;
  EXPECT_FALSE(plan.evaluate_at(a, 25, false));
  a.eval_strategy = Interval::epoch;  // the delay counts too
  a.eval_delay = 1.5;
  EXPECT_FALSE(plan.evaluate_at(a, 10, true));
  EXPECT_TRUE(plan.evaluate_at(a, 20, true));
  a.eval_delay = 0;
  a.eval_strategy = Interval::no;
  EXPECT_FALSE(plan.evaluate_at(a, 25, true));
}

TEST(Plan, AnEpochWithoutBatchesIsRefused) {
  EXPECT_THROW(plan_steps(TrainingArguments{}, 0, 4), Error);
}

}  // namespace
}  // namespace shoal
