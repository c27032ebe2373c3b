// The scaling study as arithmetic: which runs, and what their throughputs come to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace shoal::app {

struct StudyOptions {
  std::vector<std::int64_t> ranks = {}, workers = {0, 2}, batches = {};
  std::int64_t examples = 0;  // of each run; 0: 12 steps of the largest, rounded up to suit all
};

// One run: `ranks` ranks, each with so many loader workers and samples a batch.
struct StudyCell {
  std::int64_t ranks = 1, workers = 0, batch = 8, steps = 0;
  std::string name() const;  // "ranks2-workers0-batch8"
};

struct Study {
  std::vector<StudyCell> cells;  // by ranks, then batch, then workers
  std::int64_t examples = 0;
};

// The same examples in every run. invalid_argument, in one line: an empty or repeated list, numbers
// below 1 (workers: below 0), examples that some run cannot have in whole steps (the nearest that
// suit are named), a run of fewer than 2 steps.
Study plan_study(const StudyOptions& options);

// What was measured of a cell.
struct StudyResult {
  StudyCell cell;
  double samples_per_second = 0, stall_share = 0;
};

struct StudyRow {
  StudyResult result;
  // Beside the same ranks and batch without workers, as a share (0.5: half as fast again); NaN
  // where that was not run.
  double gain = 0;
  // T(N) / (N * T(1)) at the same workers and batch, T(1) being T(M) / M of the fewest ranks M.
  double efficiency = 0;
};
std::vector<StudyRow> evaluate_study(const std::vector<StudyResult>& results);

std::string study_table(const std::vector<StudyRow>& rows);
nlohmann::ordered_json study_json(const std::vector<StudyRow>& rows, std::int64_t examples);
// One self-contained page: throughput and efficiency by ranks as SVG, and the table.
std::string study_page(const std::vector<StudyRow>& rows, std::int64_t examples,
                       const std::string& title);

}  // namespace shoal::app
