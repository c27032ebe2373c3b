#include "shoal/train/report/measures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

namespace shoal::report {
namespace {

std::optional<double> mean_after_first(const Series& series) {
  double sum = 0, count = 0;
  for (std::size_t i = series.y.size() > 3 ? 1 : 0; i < series.y.size(); ++i)
    if (std::isfinite(series.y[i])) {
      sum += series.y[i];
      ++count;
    }
  if (count == 0) return std::nullopt;
  return sum / count;
}

bool is_speed(std::string_view name) {
  return name.ends_with("_runtime") || name.ends_with("_per_second");
}

std::string readable(std::string_view metric) {  // eval_matthews_correlation
  std::string text(metric.substr(metric.starts_with("eval_") ? 5 : 0));
  std::ranges::replace(text, '_', ' ');
  return text;
}

}  // namespace

Series column_of(const Records& records, std::string_view name) {
  Series series;
  const auto steps = records.steps(), values = records.column(name);
  const auto bad = records.not_finite(name);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::isfinite(values[i]) || std::ranges::binary_search(bad, i)) {
      series.x.push_back(steps[i]);
      series.y.push_back(values[i]);
    }
  return series;
}

std::vector<double> steps_not_finite(const Records& records, std::string_view name) {
  std::vector<double> at;
  for (const std::size_t row : records.not_finite(name)) at.push_back(records.steps()[row]);
  return at;
}

Throughput throughput(const RunLog& run) {
  Throughput result;
  const auto steps = run.training.steps(), tokens = run.training.column("tokens_seen"),
             took = run.training.column("step_seconds"), elapsed = run.training.column("elapsed"),
             mean = run.training.column("tokens_per_second");
  const auto batch = static_cast<double>(run.setting("global_batch_size"));
  result.tokens = !tokens.empty() || !mean.empty();
  result.with_pauses = took.empty();
  if (!result.tokens && (took.empty() || batch == 0)) return result;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto since = [&](std::span<const double> column) {
      return i == 0 ? column[0] : column[i] - column[i - 1];
    };
    double rate = kAbsent;
    if (!took.empty() && !tokens.empty())
      rate = since(tokens) / (since(steps) * took[i]);
    else if (!took.empty() && batch > 0)
      rate = batch / took[i];
    else if (!tokens.empty() && !elapsed.empty() && since(elapsed) > 0)
      rate = since(tokens) / since(elapsed);
    else if (!mean.empty())
      rate = mean[i];
    if (!std::isfinite(rate) || rate < 0) continue;
    result.series.x.push_back(steps[i]);
    result.series.y.push_back(rate);
  }
  return result;
}

std::vector<Phase> phases(const RunLog& run) {
  std::vector<Phase> all = {{"data_seconds", "data: waiting for the loader", 4, {}},
                            {"forward_seconds", "forward", 0, {}},
                            {"backward_seconds", "backward", 2, {}},
                            {"communication_seconds", "waiting for other ranks", 1, {}},
                            {"pipeline_wait_seconds", "waiting for pipeline neighbours", 5, {}},
                            {"optimizer_seconds", "optimizer", 3, {}}};
  std::erase_if(all, [&](const Phase& phase) { return !run.training.has(phase.column); });
  if (all.empty() || !run.training.has("step_seconds")) return {};
  Series rest = column_of(run.training, "step_seconds");
  for (Phase& phase : all) {
    phase.seconds = column_of(run.training, phase.column);
    phase.mean = mean_after_first(phase.seconds).value_or(0);
    // A record without a phase (a run resumed with another layout) spent no time in it.
    Series full{rest.x, std::vector<double>(rest.x.size(), 0.0)};
    for (std::size_t i = 0, j = 0; i < full.x.size() && j < phase.seconds.x.size(); ++i)
      if (full.x[i] == phase.seconds.x[j]) full.y[i] = phase.seconds.y[j++];
    phase.seconds = std::move(full);
    for (std::size_t i = 0; i < rest.y.size(); ++i)
      if (std::isfinite(phase.seconds.y[i])) rest.y[i] -= phase.seconds.y[i];
  }
  for (double& seconds : rest.y) seconds = std::max(seconds, 0.0);
  const double mean = mean_after_first(rest).value_or(0);
  const bool only_data = all.size() == 1;
  all.push_back({"", only_data ? "computing" : "other", only_data ? 0 : 6, std::move(rest), mean});
  return all;
}

std::vector<std::string> metric_names(const Records& evaluations) {
  std::vector<std::string> names;
  for (const std::string& name : evaluations.names())
    if (name.starts_with("eval_") && name != "eval_" && name != "eval_loss" && !is_speed(name))
      names.push_back(name);
  return names;
}

int better_direction(std::string_view metric) {
  for (const char* word : {"loss", "perplexity", "error", "mse", "mae", "rmse", "wer", "cer"})
    if (metric.ends_with(word)) return -1;
  return 1;
}

std::vector<Number> numbers_of(const RunLog& run) {
  std::vector<Number> all;
  const auto put = [&all](std::string_view key, const char* title, Unit unit,
                          std::optional<double> value, int better = 0) {
    if (value) all.push_back({std::string(key), title, unit, *value, better});
  };
  const Records &training = run.training, &evaluations = run.evaluations;
  const auto at = [](const Records& records, const char* name,
                     std::optional<std::size_t> row) -> std::optional<double> {
    return row ? std::optional(records.column(name)[*row]) : std::nullopt;
  };
  put("steps", "steps", Unit::count, run.last_step());
  put("epoch", "epochs", Unit::number, training.last("epoch"));
  put("loss_first", "training loss, first", Unit::number, training.first("loss"));
  // Of the last record: a run that ends with NaN has no last loss.
  if (const auto losses = training.column("loss"); !losses.empty() && std::isfinite(losses.back()))
    put("loss", "training loss, last", Unit::number, losses.back(), -1);
  put("eval_loss_first", "evaluation loss, first", Unit::number, evaluations.first("eval_loss"));
  put("eval_loss", "evaluation loss, last", Unit::number, evaluations.last("eval_loss"), -1);
  put("eval_loss_best", "evaluation loss, best", Unit::number,
      at(evaluations, "eval_loss", evaluations.row_of_least("eval_loss")), -1);
  const auto unigram = run.results.find("unigram_eval_loss");
  if (unigram != run.results.end() && unigram->is_number())
    put("unigram_eval_loss", "evaluation loss of a unigram model", Unit::number,
        unigram->get<double>());
  for (const std::string& name : metric_names(evaluations))
    if (const auto value = evaluations.last(name))
      all.push_back(
          {name, readable(name) + ", last", Unit::number, *value, better_direction(name)});
  const Throughput rates = throughput(run);
  put(rates.tokens ? "tokens_per_second" : "samples_per_second", rates.unit(), Unit::number,
      median(rates.series.y), 1);
  put("mfu", "share of the peak (MFU)", Unit::share, training.median("mfu"), 1);
  put("tokens_seen", "tokens seen", Unit::count, training.last("tokens_seen"));
  put("step_seconds", "step time (median)", Unit::seconds, training.median("step_seconds"), -1);
  for (const Phase& phase : phases(run))
    if (!phase.column.empty()) put(phase.column, phase.name, Unit::seconds, phase.mean, -1);
  put("exposed_communication_seconds", "gradients waited for, a step", Unit::seconds,
      training.median("exposed_communication_seconds"), -1);
  put("hidden_communication_share", "gradients' bytes summed behind backward", Unit::share,
      training.median("hidden_communication_share"), 1);
  put("memory_peak_bytes", "memory at its peak, rank 0", Unit::bytes,
      at(training, "memory_peak_bytes", training.row_of_most("memory_peak_bytes")), -1);
  put("pinned_memory_peak_bytes", "pinned host memory at its peak, rank 0", Unit::bytes,
      at(training, "pinned_memory_peak_bytes", training.row_of_most("pinned_memory_peak_bytes")),
      -1);
  put("seconds", "time of the run", Unit::seconds, training.last("elapsed"), -1);
  return all;
}

const Number* find(const std::vector<Number>& numbers, std::string_view key) {
  const auto found = std::ranges::find(numbers, key, &Number::key);
  return found == numbers.end() ? nullptr : &*found;
}

nlohmann::json medians_of(const RunLog& run) {
  nlohmann::json all = {{"memory_peak_by_tag", run.memory_peak_by_tag}};
  for (const Number& number : numbers_of(run)) all[number.key] = number.value;
  return all;
}

std::vector<ForecastPart> forecast_of(const RunLog& run) {
  const auto predicted = run.settings.find("predicted");
  if (predicted == run.settings.end() || !predicted->is_object()) return {};
  return forecast_parts(*predicted, medians_of(run));
}

std::vector<ScalingPoint> scaling(std::span<const Measured> runs) {
  std::map<std::int64_t, std::vector<double>> by_ranks;
  for (const Measured& run : runs)
    if (run.ranks > 0 && std::isfinite(run.throughput) && run.throughput > 0)
      by_ranks[run.ranks].push_back(run.throughput);
  if (by_ranks.size() < 2) return {};
  std::vector<ScalingPoint> points;
  for (const auto& [ranks, rates] : by_ranks)
    points.push_back(
        {.ranks = ranks, .throughput = *median(rates), .runs = static_cast<int>(rates.size())});
  const ScalingPoint base = points.front();
  for (ScalingPoint& point : points)
    point.efficiency = point.throughput * static_cast<double>(base.ranks) /
                       (static_cast<double>(point.ranks) * base.throughput);
  return points;
}

}  // namespace shoal::report
