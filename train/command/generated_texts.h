// Summarization and translation in a run: checks of their options, and how evaluation generates.
#pragma once

#include <optional>

#include "shoal/nn/models/generate.h"
#include "shoal/train/command/setup.h"

namespace shoal::command {

bool learns_pairs(TaskKind kind);  // summarization or translation
// Whether evaluation and prediction generate texts (predict_with_generate).
bool generates_texts(const RunArguments& arguments, TaskKind kind);
// Throws invalid_argument or unavailable for options that contradict each other or have no effect.
void check_pairs(const RunArguments& arguments);
// How evaluation generates; nullopt: it does not. Sets the forced ids of the task's model. Adds to
// the notices what of generation_config.json is not done.
std::optional<nn::GenerationOptions> generation_of(const RunArguments& arguments, RunSetup& setup);

}  // namespace shoal::command
