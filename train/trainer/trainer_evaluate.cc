#include <algorithm>
#include <cmath>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/trainer/generation.h"
#include "shoal/train/trainer/trainer_impl.h"

namespace shoal {
namespace {

nlohmann::ordered_json with_suffix(const nlohmann::ordered_json& metrics,
                                   const std::string& suffix) {
  if (suffix.empty()) return metrics;
  OrderedFields renamed;
  for (const auto& [name, value] : metrics.items()) renamed[name + suffix] = value;
  return std::move(renamed).json();
}

}  // namespace

Trainer::Impl::Evaluated Trainer::Impl::run_over(const std::shared_ptr<const Dataset>& dataset,
                                                 bool predict) {
  settle();
  const TraceSpan span(parts.tracer, "step", "evaluate");
  const auto began = Clock::now();
  Evaluated result;
  result.samples = dataset->size();
  auto sampler = std::make_unique<EvaluationSampler>(result.samples, share.count, share.index);
  const std::int64_t batch_size = args.per_device_eval_batch_size * share.devices;
  result.batches = sampler->batches_of_longest_rank(batch_size);
  const auto at_a_time = static_cast<std::size_t>(engine->batches_at_a_time());

  // With fewer samples than ranks, some ranks have no samples.
  std::optional<Loader> eval_loader;
  if (sampler->samples() > 0) {
    eval_loader.emplace(
        dataset, parts.collator, std::move(sampler), parts.host(),
        LoaderOptions{.batch_size = batch_size,
                      .num_workers = static_cast<int>(args.dataloader_num_workers),
                      .prefetch_factor = static_cast<int>(args.dataloader_prefetch_factor)});
    eval_loader->seek({0, 0});
  }
  std::vector<Batch> some;
  GatheredPredictions gathered(result.samples);
  Engine::Scores scores;
  if (predict && !parts.generation)
    scores = [&](std::size_t batch, std::int64_t first_row, const Tensor& rows) {
      gathered.add(some.at(batch), first_row, rows);
    };
  const GenerationPlace generates{.engine = engine.get(),
                                  .model = parts.task->generator(),
                                  .host = &parts.host(),
                                  .batch_rows = batch_size};
  SHOAL_CHECK(!parts.generation || generates.model != nullptr, "{} generates no text",
              parts.task->describe());
  double sums[] = {0, 0};  // loss, targets
  // Between batches, ranks notice if another one has died or got a request to stop.
  const bool together = engine->evaluates_together();
  int stopped_by = 0;
  for (std::int64_t done = 0; done < result.batches && stopped_by == 0;) {
    some.clear();
    while (eval_loader && some.size() < at_a_time) {
      auto batch = eval_loader->next();
      if (!batch) break;
      some.push_back(std::move(*batch));
    }
    if (some.empty() && !together) break;
    const LossSums here = engine->evaluate(some, scores);
    sums[0] += here.loss;
    sums[1] += here.targets;
    if (predict && parts.generation)
      generate_texts(
          generates, some, *parts.generation,
          [&](std::size_t batch, std::int64_t row, const std::vector<std::int32_t>& ids) {
            gathered.add(some.at(batch), row, ids);
          });
    done = std::min(result.batches, done + static_cast<std::int64_t>(at_a_time));
    each_callback([&](TrainerCallback& c) { c.on_evaluate_progress(done, result.batches); });
    stopped_by =
        together ? long_work->agree(received_signal()) : long_work->beat(received_signal());
  }
  stopped_by = long_work->finish(received_signal());
  if (stopped_by != 0) throw StoppedBySignal(stopped_by);
  sum(sums, 2);
  result.loss = sums[0];
  result.targets = sums[1];
  if (predict) result.predictions = gathered.take(ranks() > 1 ? &engine->beside() : nullptr);
  result.seconds = std::max(seconds_since(began), 1e-9);
  return result;
}

void Trainer::Impl::add_speed(nlohmann::ordered_json& metrics, const std::string& prefix,
                              const Evaluated& done) {
  metrics[prefix + "_runtime"] = done.seconds;
  metrics[prefix + "_samples_per_second"] = static_cast<double>(done.samples) / done.seconds;
  metrics[prefix + "_steps_per_second"] = static_cast<double>(done.batches) / done.seconds;
}

void Trainer::Impl::add_computed(nlohmann::ordered_json& metrics, const std::string& prefix,
                                 const Predictions& predictions) const {
  const nlohmann::ordered_json computed = parts.compute_metrics(predictions);
  SHOAL_CHECK(computed.is_object(), "compute_metrics gives {}, not an object of named numbers",
              computed.type_name());
  OrderedFields all(std::move(metrics));
  for (const auto& [name, value] : computed.items())
    all[name.starts_with(prefix + "_") ? name : prefix + "_" + name] = value;
  metrics = std::move(all).json();
}

Trainer::Impl::EvaluationMetrics Trainer::Impl::measure(
    const std::shared_ptr<const Dataset>& dataset, const std::string& suffix) {
  SHOAL_CHECK(dataset != nullptr, "there is no validation set; give validation_file");
  SHOAL_CHECK(dataset->size() > 0, "the validation set is empty");
  const bool computes = static_cast<bool>(parts.compute_metrics);
  const bool shows = dataset == parts.eval_dataset && suffix.empty();
  const bool predicts = computes || (shows && parts.samples.first_of_set > 0);
  const Evaluated done =
      with_memory_for(MemoryUse::evaluation, [&] { return run_over(dataset, predicts); });
  const double loss = done.loss / std::max(done.targets, 1.0);
  nlohmann::ordered_json record;
  record["eval_loss"] = loss;
  if (parts.task->predicts_tokens()) record["eval_perplexity"] = std::exp(loss);
  if (computes) add_computed(record, "eval", done.predictions);
  nlohmann::ordered_json metrics = record;
  add_speed(metrics, "eval", done);
  record = with_suffix(record, suffix);
  metrics = with_suffix(metrics, suffix);
  if (plan) {
    metrics["epoch"] = epoch_now();
    record["epoch"] = epoch_now();
  }
  record["step"] = state.global_step;
  EvaluationMetrics given{std::move(record), std::move(metrics), {}};
  if (shows) given.samples = sample_lines(done.predictions);
  return given;
}

void Trainer::Impl::log_evaluation(const EvaluationMetrics& given) {
  // The state keeps only values that do not depend on time.
  state.log_history.push_back(nlohmann::json(given.record));
  nlohmann::ordered_json line = given.metrics;
  line["step"] = state.global_step;
  write_metrics(line);
  each_callback([&](TrainerCallback& c) {
    c.on_log(line);
    c.on_evaluate(given.metrics);
  });
  log_samples(given.samples);
}

nlohmann::ordered_json Trainer::Impl::evaluate(const std::shared_ptr<const Dataset>& dataset,
                                               const std::string& suffix) {
  const EvaluationMetrics given = measure(dataset, suffix);
  log_evaluation(given);
  return given.metrics;
}

nlohmann::ordered_json Trainer::Impl::evaluate_in_training() {
  evaluated_now = measure(parts.eval_dataset, "");
  log_evaluation(*evaluated_now);
  return evaluated_now->metrics;
}

void Trainer::Impl::evaluate_what_is_due(TrainerControl& control) {
  if (!std::exchange(state.evaluation_due, false) || !parts.eval_dataset) return;
  if (state.global_step == 0) {
    evaluate(parts.eval_dataset);
  } else {
    note_metric(evaluate_in_training(), control);
  }
  // Saves the checkpoint again, now with its evaluation.
  if (last_checkpoint_step == state.global_step) save_checkpoint();
}

nlohmann::ordered_json Trainer::Impl::evaluate_once() {
  if (!evaluated_now) return evaluate(parts.eval_dataset);
  log_evaluation(*evaluated_now);
  return evaluated_now->metrics;
}

PredictionOutput Trainer::Impl::predict(const std::shared_ptr<const Dataset>& dataset) {
  SHOAL_CHECK(dataset != nullptr && dataset->size() > 0, "there is nothing to predict");
  Evaluated done = with_memory_for(MemoryUse::evaluation, [&] { return run_over(dataset, true); });
  PredictionOutput output;
  if (done.targets > 0) {
    output.metrics["test_loss"] = done.loss / done.targets;
    if (parts.compute_metrics) add_computed(output.metrics, "test", done.predictions);
  }
  add_speed(output.metrics, "test", done);
  output.predictions = std::move(done.predictions);
  return output;
}

// Names of compute_metrics are not known before it runs.
void Trainer::Impl::check_metric_name() const {
  const std::string& name = args.metric_for_best_model;
  const std::string metric = name.starts_with("eval_") ? name.substr(5) : name;
  if (parts.compute_metrics || metric == "loss" || metric == "perplexity") return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("metric_for_best_model '{}' is not computed", name),
              "use loss or perplexity, or give the Trainer a compute_metrics");
}

// Like Hugging Face: higher is better, except for a loss.
bool Trainer::Impl::greater_is_better() const {
  const std::string& name = args.metric_for_best_model;
  return args.greater_is_better.value_or(!name.ends_with("loss") && !name.ends_with("perplexity"));
}

void Trainer::Impl::note_metric(const nlohmann::ordered_json& metrics, TrainerControl& control) {
  const std::string name = args.metric_for_best_model.starts_with("eval_")
                               ? args.metric_for_best_model
                               : "eval_" + args.metric_for_best_model;
  const auto found = metrics.find(name);
  if (found == metrics.end() || !found->is_number()) {
    std::string there;
    for (const auto& [key, value] : metrics.items())
      if (key.starts_with("eval_") && value.is_number())
        there += (there.empty() ? "" : ", ") + key.substr(5);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("metric_for_best_model '{}' is not what evaluation gives",
                            args.metric_for_best_model),
                "use one of " + there);
  }
  const double value = found->get<double>();
  const bool better = std::isfinite(value) &&
                      (!state.best_metric || (greater_is_better() ? value > *state.best_metric
                                                                  : value < *state.best_metric));
  if (args.early_stopping_patience) {
    // Like Hugging Face's EarlyStoppingCallback: a gain within the threshold is a new best value,
    // but does not reset patience.
    const bool gains = better && (!state.best_metric || std::abs(value - *state.best_metric) >
                                                            args.early_stopping_threshold);
    state.evaluations_without_gain = gains ? 0 : state.evaluations_without_gain + 1;
    if (state.evaluations_without_gain >= *args.early_stopping_patience) {
      say(
          fmt::format("stopping at step {} of {}: {} has not become better in {} evaluations "
                      "(early_stopping_patience)",
                      state.global_step, plan->total_steps, name, state.evaluations_without_gain));
      control.should_stop = true;
    }
  }
  if (!better) return;
  state.best_metric = value;
  if (!args.load_best_model_at_end && args.save_strategy != Interval::best) return;
  // Requests the checkpoint at once, even if save_steps does not select this step.
  state.best_model_checkpoint = checkpoint_path(args.output_dir, state.global_step);
  control.should_save = true;
}

nlohmann::ordered_json Trainer::evaluate() {
  return impl_->guarded([this] { return impl_->evaluate(impl_->parts.eval_dataset); });
}
nlohmann::ordered_json Trainer::evaluate_once() {
  return impl_->guarded([this] { return impl_->evaluate_once(); });
}
nlohmann::ordered_json Trainer::evaluate(std::shared_ptr<const Dataset> dataset,
                                         const std::string& suffix) {
  return impl_->guarded([&] { return impl_->evaluate(dataset, suffix); });
}
PredictionOutput Trainer::predict(std::shared_ptr<const Dataset> dataset) {
  return impl_->guarded([&] { return impl_->predict(dataset); });
}

}  // namespace shoal
