// Predicts a run's step on a machine, and chooses its layout (--machine, --auto).
#pragma once

#include <string>

#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/command/setup.h"

namespace shoal::command {

// Replaces layout and batch size of the resolved `arguments` by the fastest layout that search()
// finds for these ranks on arguments.layout.machine, with as many samples a step. Every rank finds
// the same. Returns a line for the log. Throws invalid_argument if the arguments have a layout
// already, if nothing fits, or if there is no such machine.
std::string take_fastest_layout(RunArguments& arguments, const RunSetup& setup, const World& world);

// A line with the predicted step of the arguments' own layout on arguments.layout.machine.
std::string predicted_step(const RunArguments& arguments, const RunSetup& setup,
                           const World& world);

}  // namespace shoal::command
