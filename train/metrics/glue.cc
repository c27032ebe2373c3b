#include "shoal/train/metrics/glue.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/train/metrics/classification.h"

namespace shoal {
namespace {

std::string plain(std::string_view name) {
  std::string result;
  for (const char c : name)
    if (c != '-' && c != '_')
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::vector<std::int64_t> classes_of(std::span<const double> values) {
  std::vector<std::int64_t> classes;
  classes.reserve(values.size());
  for (const double value : values) classes.push_back(std::llround(value));
  return classes;
}

double metric(std::string_view name, std::span<const double> predictions,
              std::span<const double> labels) {
  if (name == "pearson") return pearson_correlation(predictions, labels);
  if (name == "spearmanr") return spearman_correlation(predictions, labels);
  const auto predicted = classes_of(predictions), are = classes_of(labels);
  if (name == "accuracy") return accuracy(predicted, are);
  if (name == "f1") return f1_score(predicted, are);
  SHOAL_CHECK(name == "matthews_correlation", "a metric called {}", name);
  return matthews_correlation(predicted, are);
}

}  // namespace

const std::vector<GlueTask>& glue_tasks() {
  static const std::vector<GlueTask> tasks = {
      {"cola", {"unacceptable", "acceptable"}, {"matthews_correlation"}},
      {"mnli", {"entailment", "neutral", "contradiction"}, {"accuracy"}},
      {"mrpc", {"not_equivalent", "equivalent"}, {"accuracy", "f1"}},
      {"qnli", {"entailment", "not_entailment"}, {"accuracy"}},
      {"qqp", {"not_duplicate", "duplicate"}, {"accuracy", "f1"}},
      {"rte", {"entailment", "not_entailment"}, {"accuracy"}},
      {"sst2", {"negative", "positive"}, {"accuracy"}},
      {"stsb", {}, {"pearson", "spearmanr"}},
      {"wnli", {"not_entailment", "entailment"}, {"accuracy"}}};
  return tasks;
}

const GlueTask& glue_task(std::string_view name) {
  std::vector<std::string> names;
  for (const GlueTask& task : glue_tasks()) {
    if (plain(name) == task.name) return task;
    names.emplace_back(task.name);
  }
  throw Error(ErrorCode::not_found, fmt::format("GLUE has no task '{}'", name),
              names_there_are(plain(name), names));
}

std::map<std::string, double> glue_metrics(const GlueTask& task,
                                           std::span<const double> predictions,
                                           std::span<const double> labels) {
  std::map<std::string, double> result;
  double sum = 0;
  for (const std::string_view name : task.metrics)
    sum += result[std::string(name)] = metric(name, predictions, labels);
  if (task.metrics.size() > 1)
    result["combined_score"] = sum / static_cast<double>(task.metrics.size());
  return result;
}

}  // namespace shoal
