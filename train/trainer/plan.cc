#include "shoal/train/trainer/plan.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

// Converts the `steps` that `option` asks for to an integer. Above kMostSteps, a double cannot
// represent every integer.
std::int64_t whole(double steps, std::string_view option, double value) {
  SHOAL_CHECK(steps <= static_cast<double>(kMostSteps),
              "{} {:g} is {:.3g} steps, and a run counts {} at most; give fewer", option, value,
              steps, kMostSteps);
  return static_cast<std::int64_t>(steps);
}

// Resolves a number of steps; a value below 1 is a share of all steps. An interval longer than the
// run is allowed.
std::int64_t resolve(double steps, std::int64_t total) {
  const double count = steps < 1 ? std::ceil(steps * static_cast<double>(total)) : steps;
  return static_cast<std::int64_t>(std::clamp(count, 1.0, static_cast<double>(kMostSteps)));
}

// With `epoch`, the run's last step counts as the end of an epoch.
bool due(Interval strategy, std::int64_t every, const StepPlan& plan, std::int64_t step,
         bool epoch_end) {
  return (strategy == Interval::steps && step % every == 0) ||
         (strategy == Interval::epoch && (epoch_end || step >= plan.total_steps));
}

}  // namespace

StepPlan plan_steps(const TrainingArguments& a, std::int64_t batches_per_epoch, int ranks) {
  SHOAL_CHECK(batches_per_epoch > 0,
              "an epoch has no whole batch of {} samples on each of {} ranks",
              a.per_device_train_batch_size, ranks);
  StepPlan plan;
  plan.batches_per_epoch = batches_per_epoch;
  plan.updates_per_epoch =
      (batches_per_epoch + a.gradient_accumulation_steps - 1) / a.gradient_accumulation_steps;
  const auto per_epoch = static_cast<double>(plan.updates_per_epoch);
  if (a.max_steps > 0) {
    plan.total_steps = a.max_steps;
    plan.epochs = static_cast<double>(a.max_steps) / per_epoch;
  } else {
    plan.total_steps =
        whole(std::ceil(a.num_train_epochs * per_epoch), "num_train_epochs", a.num_train_epochs);
    plan.epochs = a.num_train_epochs;
  }
  plan.warmup_steps =
      a.warmup_steps >= 1
          ? whole(a.warmup_steps, "warmup_steps", a.warmup_steps)
          : static_cast<std::int64_t>(std::ceil(std::max(a.warmup_steps, a.warmup_ratio) *
                                                static_cast<double>(plan.total_steps)));
  plan.logging_steps = resolve(a.logging_steps, plan.total_steps);
  plan.eval_steps = resolve(a.eval_steps.value_or(a.logging_steps), plan.total_steps);
  plan.save_steps = resolve(a.save_steps, plan.total_steps);
  plan.global_batch = a.per_device_train_batch_size * a.gradient_accumulation_steps * ranks;
  return plan;
}

bool StepPlan::log_at(const TrainingArguments& a, std::int64_t step, bool epoch_end) const {
  // With `steps`, the last step is always logged, so that the log has the final loss.
  const bool last = a.logging_strategy == Interval::steps && step >= total_steps;
  return last || due(a.logging_strategy, logging_steps, *this, step, epoch_end) ||
         (a.logging_first_step && step == 1);
}
bool StepPlan::evaluate_at(const TrainingArguments& a, std::int64_t step, bool epoch_end) const {
  const auto done = static_cast<double>(step);
  const double waited =
      a.eval_strategy == Interval::epoch ? done / static_cast<double>(updates_per_epoch) : done;
  // With `steps`, the last step is evaluated too, as in transformers 5: it is saved and may be the
  // best.
  const bool last = a.eval_strategy == Interval::steps && step >= total_steps;
  return (last || due(a.eval_strategy, eval_steps, *this, step, epoch_end)) &&
         waited >= a.eval_delay;
}
bool StepPlan::save_at(const TrainingArguments& a, std::int64_t step, bool epoch_end) const {
  // With `steps`, the last step is always saved.
  return due(a.save_strategy, save_steps, *this, step, epoch_end) ||
         (a.save_strategy == Interval::steps && step >= total_steps);
}

}  // namespace shoal
