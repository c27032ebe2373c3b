// What a checkpoint keeps of the training set (TrainerParts::data_options).
#pragma once

#include "run_setup.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/rendezvous/world.h"

namespace shoal::app {

// The options of this task that its training rows follow from, with their values in force, after
// open_data(). A file is its name, its size and, where it is local, a digest of its content: a run
// may be moved. Rank 0's alone has it.
nlohmann::json data_options(const RunArguments& arguments, const RunSetup& setup,
                            const World& world);

}  // namespace shoal::app
