// What a run left in its output_dir: metrics.jsonl, and where they are there run_settings.json and
// all_results.json.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/train/report/records.h"

namespace shoal::report {

// What the trainer cannot know alone: written by the program that runs it, on rank 0, when training
// begins. Every field may be missing.
inline constexpr const char* kSettingsFile = "run_settings.json";
//   {"program": "shoal 0.1", "started": "2026-11-23 04:05:06 UTC", "command": "shoal train ...",
//    "ranks": 2, "threads": 1, "host": "...", "total_steps": 300, "global_batch_size": 16,
//    "parameters": 10000000, "header": ["model: ...", ...],
//    "machine": {"processor": "...", ...}, "options": {section: {name: value}},
//    "given": ["max_steps", ...]}

struct RunLog {
  std::string directory;
  std::string name;     // its last part; of several runs as much of the path as tells them apart
  Records training;     // records with a loss
  Records evaluations;  // records with numbers that begin with "eval_"
  // Bytes, rank 0's; pinned in the host's memory, by a run on a device.
  std::map<std::string, double> memory_peak_by_tag, pinned_memory_peak_by_tag;
  nlohmann::json settings = nlohmann::json::object();
  nlohmann::json results = nlohmann::json::object();  // all_results.json
  bool finished = false;                              // its last word was that training has ended
  double end_step = 0;                                // where; the last record may be of one before
  std::int64_t records = 0;                           // of any kind
  std::int64_t continued = 0;            // how often it went on from a checkpoint before its end
  std::int64_t replaced = 0;             // records that a continued run wrote again
  std::vector<std::int64_t> unreadable;  // numbers of lines that are no JSON object
  bool cut_off = false;                  // the last line is not whole

  double last_step() const;  // that is known of
  // From settings; 0 or empty: not known.
  std::int64_t setting(std::string_view name) const;
  std::string text_setting(std::string_view name) const;
  // An option of the run as text; empty: not known.
  std::string option(std::string_view name) const;
};

// not_found: no directory, or no metrics.jsonl in it, with what to do. A damaged file is read as
// far as it can be, and the damage is counted.
RunLog read_run(const std::string& directory);
std::vector<RunLog> read_runs(const std::vector<std::string>& directories);
// Of metrics.jsonl's text alone.
RunLog parse_run(std::string_view metrics);

}  // namespace shoal::report
