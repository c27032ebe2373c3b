// `shoal predict` and `shoal evaluate` as functions: a run of `shoal train` without training, whose
// results go to the caller instead of an output directory.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/train/trainer/console.h"

namespace shoal::command {

struct PredictOptions {
  std::string model;                           // a Hugging Face directory, or a run
  std::string file;                            // samples of the model's task, or text
  std::map<std::string, std::string> options;  // of `shoal train`
};

struct Answered {
  int status = 0;                    // runtime/base/exit_status.h
  std::string problem;               // the reason of a failure; empty on ranks that report none
  std::vector<std::string> notices;  // for the user; only on rank 0
  std::vector<nlohmann::ordered_json> answers;  // of each sample (TaskData::answers); on rank 0
  nlohmann::ordered_json metrics;
};

// Every rank calls them. Block. Throw io if there is no temporary directory.
Answered predict(const PredictOptions& options, const ConsoleCallback::Options& console);
Answered evaluate(const PredictOptions& options, const ConsoleCallback::Options& console);

}  // namespace shoal::command
