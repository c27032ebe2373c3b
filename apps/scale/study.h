// Plans a scaling study and evaluates its throughputs. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace shoal::app {

struct StudyOptions {
  std::vector<std::int64_t> ranks = {}, workers = {0, 2}, batches = {};
  // Per run. 0: 12 of the largest steps, rounded up to a whole number of steps in every run.
  std::int64_t examples = 0;
};

// One run with `ranks` ranks; workers and batch are per rank.
struct StudyCell {
  std::int64_t ranks = 1, workers = 0, batch = 8, steps = 0;
  std::string name() const;  // "ranks2-workers0-batch8"
};

struct Study {
  std::vector<StudyCell> cells;  // by ranks, then batch, then workers
  std::int64_t examples = 0;
};

// Every run has the same number of examples. Throws invalid_argument on an empty list, repeated or
// out-of-range numbers, fewer than 2 steps, or examples that are not whole steps in every run
// (suggests the nearest that are).
Study plan_study(const StudyOptions& options);

// Measurements of a cell.
struct StudyResult {
  StudyCell cell;
  double samples_per_second = 0, stall_share = 0;
};

struct StudyRow {
  StudyResult result;
  // Gain over the same ranks and batch without workers, as a share (0.5: 50 % faster); NaN if that
  // was not run.
  double gain = 0;
  // T(N) / (N * T(1)) at the same workers and batch, where T is throughput. T(1) stands for
  // T(M) / M, with M the smallest number of ranks.
  double efficiency = 0;
};
std::vector<StudyRow> evaluate_study(const std::vector<StudyResult>& results);

std::string study_table(const std::vector<StudyRow>& rows);
nlohmann::ordered_json study_json(const std::vector<StudyRow>& rows, std::int64_t examples);
// A self-contained page: throughput and efficiency by ranks as SVG, and the table.
std::string study_page(const std::vector<StudyRow>& rows, std::int64_t examples,
                       const std::string& title);

}  // namespace shoal::app
