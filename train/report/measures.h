// Derives numbers from a run's records: throughput, time per phase, final values, and scaling with
// ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/report/run_log.h"
#include "shoal/train/report/scale.h"
#include "shoal/train/report/series.h"
#include "shoal/train/trainer/forecast.h"

namespace shoal::report {

// A column over its steps. Records without the name give no point; non-finite values give y = NaN.
Series column_of(const Records& records, std::string_view name);
std::vector<double> steps_not_finite(const Records& records, std::string_view name);

struct Throughput {
  Series series;       // per second, over the steps since the previous record
  bool tokens = true;  // false: samples
  // True if step_seconds is missing: the time includes evaluation and checkpoints.
  bool with_pauses = false;
  const char* unit() const { return tokens ? "tokens/s" : "samples/s"; }
};
Throughput throughput(const RunLog& run);

// Phases of a step in drawing order, "other" last; only phases that the run recorded. Empty: none.
struct Phase {
  std::string_view column;  // "forward_seconds"; empty for "other", the rest of step_seconds
  const char* name;
  int colour;
  Series seconds;   // per step
  double mean = 0;  // over all records except the first (warm-up), if there are more than 3
};
std::vector<Phase> phases(const RunLog& run);

// A value that summarizes a run.
struct Number {
  std::string key, title;
  Unit unit = Unit::number;
  double value = 0;
  int better = 0;  // 1: higher is better, -1: lower is, 0: neither
};
std::vector<Number> numbers_of(const RunLog& run);
const Number* find(const std::vector<Number>& numbers, std::string_view key);
// Its numbers by key, with "memory_peak_by_tag": in the form of a record of metrics.jsonl.
nlohmann::json medians_of(const RunLog& run);
// The run's prediction (`shoal train --machine`) beside its medians and peaks. Empty: it had none.
std::vector<ForecastPart> forecast_of(const RunLog& run);
// Names of evaluation metrics except loss and speed, such as "eval_accuracy".
std::vector<std::string> metric_names(const Records& evaluations);
int better_direction(std::string_view metric);

// The efficiency of N ranks is T(N) / (N * T(1)), where T is throughput. If no run has one rank, it
// is relative to the smallest number of ranks N0: N0 * T(N) / (N * T(N0)).
struct ScalingPoint {
  std::int64_t ranks = 1;
  double throughput = 0;  // median of the runs with this number of ranks
  double efficiency = 1;
  int runs = 1;
};
struct Measured {
  std::int64_t ranks = 0;
  double throughput = 0;
};
// Sorted by ranks. Ignores runs whose ranks or throughput are unknown; empty with fewer than two
// numbers of ranks.
std::vector<ScalingPoint> scaling(std::span<const Measured> runs);

}  // namespace shoal::report
