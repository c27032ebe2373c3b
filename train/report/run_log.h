// Reads a run's output_dir: metrics.jsonl and, if present, run_settings.json, all_results.json and
// samples.jsonl.
// Runs of Hugging Face's Trainer have trainer_state.json in place of the first two.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/train/report/records.h"
#include "shoal/train/report/samples.h"

namespace shoal::report {

// Facts that the trainer does not know. The running program writes them on rank 0 when training
// begins. Every field may be missing.
inline constexpr const char* kSettingsFile = "run_settings.json";
//   {"program": "shoal 0.1", "started": "2026-11-23 04:05:06 UTC", "command": "shoal train ...",
//    "ranks": 2, "threads": 1, "host": "...", "total_steps": 300, "global_batch_size": 16,
//    "parameters": 10000000, "header": ["model: ...", ...], "predicted": {"step_seconds": ...,
//    ...}, "machine": {"processor": "...", ...}, "options": {section: {name: value}}, "given":
//    ["max_steps", ...]}

struct RunLog {
  std::string directory;
  std::string name;     // last part of the path; with several runs, enough of it to tell them apart
  Records training;     // records with a loss
  Records evaluations;  // records with "eval_" numbers
  // Peak bytes on rank 0, in tensor memory and, for runs on a device, in pinned host memory.
  std::map<std::string, double> memory_peak_by_tag, pinned_memory_peak_by_tag;
  nlohmann::json settings = nlohmann::json::object();
  nlohmann::json results = nlohmann::json::object();  // all_results.json
  std::vector<SampledPrompt> samples;                 // samples.jsonl
  bool finished = false;                              // the last record ends training
  double end_step = 0;                                // last step; may have no record
  std::int64_t records = 0;                           // of any kind
  std::int64_t continued = 0;            // resumptions from a checkpoint before the end
  std::int64_t replaced = 0;             // records that a resumed run wrote again
  std::vector<std::int64_t> unreadable;  // numbers of lines that are no JSON object
  bool cut_off = false;                  // the last line is incomplete

  double last_step() const;  // the last known step
  // From settings; 0 or empty: unknown.
  std::int64_t setting(std::string_view name) const;
  std::string text_setting(std::string_view name) const;
  // An option of the run as text; empty: unknown.
  std::string option(std::string_view name) const;
};

// One sentence for each part of the data that is missing, left out or repeated. For the page and
// the terminal.
std::vector<std::string> remarks_of(const RunLog& run);

// Throws not_found with a remedy if the directory or its records do not exist. Reads a
// damaged file as far as possible and counts the damage.
RunLog read_run(const std::string& directory);
std::vector<RunLog> read_runs(const std::vector<std::string>& directories);
// Parses only the text of metrics.jsonl.
RunLog parse_run(std::string_view metrics);

}  // namespace shoal::report
