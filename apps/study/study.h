// A study: the same training with several numbers of ranks, loader workers, batch sizes and
// backends. Reads the study file, plans its runs and evaluates what they measured. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/sagemaker/job/fields.h"

namespace shoal::app {

using sagemaker::Json;

struct StudyOptions {
  std::string name;               // title of the page; part of the jobs' names
  std::string config;             // of `shoal train`: its CONFIG.json; empty: none
  Json options = Json::object();  // further options of `shoal train`
  std::vector<std::int64_t> ranks = {}, workers = {0, 2}, batches = {8, 16};
  std::int64_t ranks_per_node = 0;  // 0: all ranks of a run are on one node
  std::vector<std::string> backends = {"native"};
  // Per run. 0: 12 of the largest steps, rounded up to a whole number of steps in every run.
  std::int64_t examples = 0;
  std::int64_t rounds = 1;                      // a row is the median of so many runs
  std::string launch = {};                      // starts the ranks; empty: mpirun on this host
  std::string script = {}, python = "python3";  // what the backends ddp and ddp-shoal run
  std::string job = {};                         // a job file: the runs are SageMaker jobs
  std::optional<double> price_per_hour = {};    // of a node
};

// `ranks`: used if the file has none. Throws invalid_argument with all problems of the file, a line
// each: unknown keys, wrong types, repeated or out-of-range numbers, keys that exclude each other,
// options that the study sets.
StudyOptions read_study(const Json& file, const std::string& name,
                        const std::vector<std::int64_t>& ranks);

// One run; workers and batch are per rank.
struct StudyCell {
  std::int64_t ranks = 1, nodes = 1, workers = 0, batch = 8, steps = 0;
  std::string backend = "native";
  std::string name() const;  // "ranks2-workers0-batch8-native"
};

struct Study {
  std::vector<StudyCell> cells;  // by ranks, then batch, workers, backend
  std::int64_t examples = 0;
};

// Every run has the same number of examples. Throws invalid_argument on fewer than 2 steps, or
// examples that are not whole steps in every run (suggests the nearest that are).
Study plan_study(const StudyOptions& options);

// True if PyTorch's DistributedDataParallel trains.
bool is_ddp(const std::string& backend);
// The options of `shoal train` or of Hugging Face's Trainer that the study sets in this run.
Json options_of(const StudyCell& cell);

// A job file's content for one run of a study of SageMaker jobs: instances, options and no name.
Json job_of(const Json& file, const StudyOptions& options, const StudyCell& cell);

// Measurements of a cell; NaN: not measured.
struct StudyResult {
  StudyCell cell;
  double samples_per_second = 0, stall_share = 0;
  double node_seconds = 0;                             // that are paid for
  std::vector<std::pair<double, double>> losses = {};  // by examples seen
};

struct StudyRow {
  StudyResult result;
  // Gain over the same run without workers, as a share (0.5: 50 % faster); NaN if that was not run.
  double gain = 0;
  // T(N) / (N * T(1)) of otherwise equal runs, where T is throughput. T(1) stands for T(M) / M,
  // with M the smallest number of ranks.
  double efficiency = 0;
  // Throughput over that of the study's first backend in an otherwise equal run.
  double over_first = 0;
  double cost = 0;  // NaN without a price
};
std::vector<StudyRow> evaluate_study(const std::vector<StudyResult>& results,
                                     const StudyOptions& options);

// The head, then a row of cells for each run. Columns that are empty in every run are left out.
std::vector<std::vector<std::string>> study_cells(const std::vector<StudyRow>& rows,
                                                  const StudyOptions& options);
std::string study_table(const std::vector<StudyRow>& rows, const StudyOptions& options);
Json study_json(const std::vector<StudyRow>& rows, const Study& study);
// A self-contained page: throughput and efficiency by ranks, losses over each other, the table.
std::string study_page(const std::vector<StudyRow>& rows, const Study& study,
                       const StudyOptions& options);

}  // namespace shoal::app
