// What a run's records come to: throughput, where a step's time went, the numbers at the end, and
// how throughput grows with ranks.
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

namespace shoal::report {

// A column over its steps; where a record lacks the name there is no point, where it was not finite
// y is NaN.
Series column_of(const Records& records, std::string_view name);
std::vector<double> steps_not_finite(const Records& records, std::string_view name);

struct Throughput {
  Series series;             // per second, of the steps since the record before
  bool tokens = true;        // else samples
  bool with_pauses = false;  // evaluation and checkpoints count: step_seconds was not recorded
  const char* unit() const { return tokens ? "tokens/s" : "samples/s"; }
};
Throughput throughput(const RunLog& run);

// Parts of a step in the order in which they are drawn, "other" last; only those that the run has
// recorded. Empty: none.
struct Phase {
  std::string_view column;  // "forward_seconds"; of "other" empty: what they leave of step_seconds
  const char* name;
  int colour;
  Series seconds;   // a step
  double mean = 0;  // of all records but the first, which warms up, where there are more than 3
};
std::vector<Phase> phases(const RunLog& run);

// The numbers a run is told by.
struct Number {
  std::string key, title;
  Unit unit = Unit::number;
  double value = 0;
  int better = 0;  // 1: more is, -1: less is, 0: neither
};
std::vector<Number> numbers_of(const RunLog& run);
const Number* find(const std::vector<Number>& numbers, std::string_view key);
// "eval_accuracy" and the like: metrics of evaluations but for their loss and speed.
std::vector<std::string> metric_names(const Records& evaluations);
int better_direction(std::string_view metric);

// T(N) / (N * T(1)); where no run has one rank, of the fewest ranks: N0 * T(N) / (N * T(N0)).
struct ScalingPoint {
  std::int64_t ranks = 1;
  double throughput = 0;  // the median of the runs on so many ranks
  double efficiency = 1;
  int runs = 1;
};
struct Measured {
  std::int64_t ranks = 0;
  double throughput = 0;
};
// By ranks, rising. Runs whose ranks or throughput are not known are left out; fewer than two
// numbers of ranks: empty.
std::vector<ScalingPoint> scaling(std::span<const Measured> runs);

}  // namespace shoal::report
