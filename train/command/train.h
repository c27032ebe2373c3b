// `shoal train` as a function.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/train/command/local_model.h"
#include "shoal/train/command/setup.h"
#include "shoal/train/trainer/console.h"

namespace shoal::command {

// Trains as `shoal train` does; `words` are its arguments: {"run.json", "--max_steps", "100"}.
// `add_sources` registers sources of data besides files. Returns the exit status
// (runtime/base/exit_status.h). A failure is reported on standard error, one line on one rank.
// Every rank of the run calls it. Blocks.
// `fetch` downloads models for --allow_download; null: refused.
int train(const std::vector<std::string>& words, const AddSources& add_sources,
          const FetchModel& fetch = {});

// A run inside a process that continues after it, such as Python's.
struct Guest {
  nlohmann::json options;                                  // of `shoal train`, as in a JSON file
  ConsoleCallback::Options console;                        // of rank 0
  std::vector<nlohmann::ordered_json>* answers = nullptr;  // where do_predict's samples go
  // Filled by train():
  nlohmann::ordered_json metrics;    // those of all_results.json
  std::vector<std::string> notices;  // of rank 0, also printed
  std::string problem;  // the line that `shoal train` would print; empty on ranks that print none
};

// The same for a guest. Restores the handlers of signals before it returns. A signal stops the run
// at any stage: training saves a checkpoint first. A second one ends the process.
int train(Guest& guest);

}  // namespace shoal::command
