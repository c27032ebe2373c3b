#include "shoal/sagemaker/job/metric_definitions.h"

#include <fmt/format.h>

namespace shoal::sagemaker {

Json default_metric_definitions() {
  Json all = Json::array();
  for (const char* name :
       {"loss", "learning_rate", "grad_norm", "epoch", "train_loss", "train_runtime",
        "train_samples_per_second", "train_steps_per_second", "eval_loss", "eval_runtime",
        "eval_samples_per_second", "eval_steps_per_second", "eval_perplexity", "eval_accuracy",
        "eval_f1", "eval_exact_match"})
    // The quote separates 'loss' from 'eval_loss'. CloudWatch does not accept nan and inf.
    all.push_back({{"Name", name}, {"Regex", fmt::format("'{}': ([0-9.eE+-]+)", name)}});
  return all;
}

}  // namespace shoal::sagemaker
