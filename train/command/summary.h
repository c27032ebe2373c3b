// The last lines of a run: its results, then where they are and what to do next.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/train/checkpoint/trainer_state.h"
#include "shoal/train/tasks/make_task.h"

namespace shoal::command {

// "result: accuracy 0.9524", the losses, without the parts that were not measured. `results`: of
// all_results.json. `unigram`: loss of a unigram model; 0: unknown.
std::vector<std::string> result_lines(const TrainerState& state,
                                      const nlohmann::ordered_json& results, double unigram);

// "next: ..." for the model in `directory`.
std::string next_line(TaskKind kind, const std::string& directory);

}  // namespace shoal::command
