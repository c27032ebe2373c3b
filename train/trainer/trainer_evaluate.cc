#include <algorithm>
#include <cmath>

#include "shoal/runtime/base/error.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/trainer/trainer_impl.h"

namespace shoal {

nlohmann::ordered_json Trainer::Impl::evaluate() {
  SHOAL_CHECK(parts.eval_dataset != nullptr, "there is no validation set; give validation_file");
  engine->settle();
  const TraceSpan span(parts.tracer, "step", "evaluate");
  const auto began = Clock::now();
  const std::int64_t samples = parts.eval_dataset->size();
  SHOAL_CHECK(samples > 0, "the validation set is empty");
  auto sampler = std::make_unique<EvaluationSampler>(samples, share.count, share.index);
  const std::int64_t batch_size = args.per_device_eval_batch_size * share.devices;
  const std::int64_t batches = sampler->batches_of_longest_rank(batch_size);
  const auto at_a_time = static_cast<std::size_t>(engine->batches_at_a_time());

  double sums[] = {0, 0};  // loss, targets
  // With fewer samples than ranks, some ranks have none.
  std::optional<Loader> eval_loader;
  if (sampler->samples() > 0) {
    eval_loader.emplace(
        parts.eval_dataset, parts.collator, std::move(sampler), parts.host(),
        LoaderOptions{.batch_size = batch_size,
                      .num_workers = static_cast<int>(args.dataloader_num_workers),
                      .prefetch_factor = static_cast<int>(args.dataloader_prefetch_factor)});
    eval_loader->seek({0, 0});
  }
  for (std::int64_t done = 0; done < batches;) {
    std::vector<Batch> some;
    while (eval_loader && some.size() < at_a_time) {
      auto batch = eval_loader->next();
      if (!batch) break;
      some.push_back(std::move(*batch));
    }
    if (some.empty() && !engine->evaluates_together()) break;
    const LossSums here = engine->evaluate(some);
    sums[0] += here.loss;
    sums[1] += here.targets;
    done = std::min(batches, done + static_cast<std::int64_t>(at_a_time));
    each_callback([&](TrainerCallback& c) { c.on_evaluate_progress(done, batches); });
  }
  sum(sums, 2);

  const double seconds = std::max(seconds_since(began), 1e-9);
  const double loss = sums[0] / std::max(sums[1], 1.0);
  nlohmann::ordered_json record;
  record["eval_loss"] = loss;
  record["eval_perplexity"] = std::exp(loss);
  nlohmann::ordered_json metrics = record;
  metrics["eval_runtime"] = seconds;
  metrics["eval_samples_per_second"] = static_cast<double>(samples) / seconds;
  metrics["eval_steps_per_second"] = static_cast<double>(batches) / seconds;
  if (plan) {
    metrics["epoch"] = epoch_now();
    record["epoch"] = epoch_now();
  }
  record["step"] = state.global_step;
  // The state keeps what does not depend on the clock.
  state.log_history.push_back(nlohmann::json(record));
  if (metrics_file) {
    nlohmann::ordered_json line = metrics;
    line["step"] = state.global_step;
    metrics_file->write(line);
  }
  each_callback([&](TrainerCallback& c) {
    c.on_log(metrics);
    c.on_evaluate(metrics);
  });
  return metrics;
}

void Trainer::Impl::note_metric(const nlohmann::ordered_json& metrics) {
  const std::string name = args.metric_for_best_model.starts_with("eval_")
                               ? args.metric_for_best_model
                               : "eval_" + args.metric_for_best_model;
  const double value = metrics.at(name).get<double>();
  const bool greater = args.greater_is_better.value_or(false);
  const bool better =
      !state.best_metric || (greater ? value > *state.best_metric : value < *state.best_metric);
  if (!better || !std::isfinite(value)) return;
  state.best_metric = value;
  // The checkpoint of this step follows right away where the best model is wanted.
  if (args.load_best_model_at_end)
    state.best_model_checkpoint = checkpoint_path(args.output_dir, state.global_step);
}

}  // namespace shoal
