// Computes the number of updates of a run, and when to log, evaluate and save, as Hugging Face's
// Trainer does.
#pragma once

#include <cstdint>

#include "shoal/train/trainer/arguments.h"

namespace shoal {

struct StepPlan {
  std::int64_t batches_per_epoch = 0;  // microbatches of a rank
  std::int64_t updates_per_epoch = 0;  // the last one may have fewer microbatches
  std::int64_t total_steps = 0;
  double epochs = 0;  // as given, or computed from max_steps
  std::int64_t warmup_steps = 0;
  std::int64_t logging_steps = 0, eval_steps = 0, save_steps = 0;  // resolved; at least 1

  std::int64_t global_batch = 0;  // samples per step

  bool log_at(const TrainingArguments& arguments, std::int64_t step, bool epoch_end) const;
  bool evaluate_at(const TrainingArguments& arguments, std::int64_t step, bool epoch_end) const;
  bool save_at(const TrainingArguments& arguments, std::int64_t step, bool epoch_end) const;
};

// `batches_per_epoch` must be above 0.
StepPlan plan_steps(const TrainingArguments& arguments, std::int64_t batches_per_epoch, int ranks);

}  // namespace shoal
