// Options of the training set that checkpoints store (TrainerParts::data_options).
#pragma once

#include <nlohmann/json.hpp>

#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/command/setup.h"

namespace shoal::command {

// The values of this task's options that determine its training rows. Call after open_data(). The
// file is described by name, size and, if local, a content digest, since a run may be moved. Only
// rank 0 includes the file's description.
nlohmann::json data_options(const RunArguments& arguments, const RunSetup& setup,
                            const World& world);

}  // namespace shoal::command
