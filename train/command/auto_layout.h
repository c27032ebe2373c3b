// Predicts a run's step on a machine, and chooses its layout (--machine, --auto).
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/command/setup.h"

namespace shoal::command {

// A run's predicted step.
struct Forecast {
  std::string line;               // for the log
  nlohmann::ordered_json record;  // of rank 0, for TrainerParts::predicted and run_settings.json
};

// Replaces layout and batch size of the resolved `arguments` by the fastest layout that search()
// finds for these ranks on arguments.layout.machine, with as many samples a step. Every rank finds
// the same. Throws invalid_argument if the arguments have a layout
// already, if nothing fits, or if there is no such machine.
Forecast take_fastest_layout(RunArguments& arguments, const RunSetup& setup, const World& world);

// Predicts the step of the arguments' own layout on arguments.layout.machine.
Forecast predicted_step(const RunArguments& arguments, const RunSetup& setup, const World& world);

}  // namespace shoal::command
